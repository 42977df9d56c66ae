"""The module `localpuppet` with the real Puppet: leader(), cluster_lock and the agent's classes."""

import json
import signal

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.bus.layout import parse_lease_name
from tests.rigs.agent_peer import Answer, Question, agree
from tests.rigs.bench import MODULES, Bench
from tests.rigs.node import completed
from tests.rigs.waiting import wait_until


def test_leader_is_the_name_of_the_holder_or_false(bench: Bench) -> None:
    def answer(question: Question) -> Answer:
        mine = question["name"] == "mine"
        return {"ok": True, "holder": "web01.example.com" if mine else None, "mine": mine}

    agent = bench.listen(answer)
    done = bench.apply(
        """
        if leader('mine', 30) == 'web01.example.com' { notice('this node leads') }
        if leader('vacant') =~ Boolean[false] { notice('no node leads') }
        """
    )
    assert done.code == 0, done.text
    assert "this node leads" in done.text
    assert "no node leads" in done.text
    assert agent.questions == [
        {"verb": "leader", "name": "mine", "ttl": 30, "take": True, "run": None},
        {"verb": "leader", "name": "vacant", "ttl": 60, "take": True, "run": None},
    ]


def test_puppet_compiles_no_catalog_if_the_leader_is_unknown(bench: Bench) -> None:
    done = bench.apply("notify { \"${leader('db')}\": }", LOCALPUPPET_COMMAND="no-such")
    assert done.code == 1
    assert len(done.errors) == 1
    assert "no-such: cannot be run: No such file or directory, and no agent" in done.errors[0]
    bench.listen(lambda _: {"ok": True, "holder": ["a"]})
    done = bench.apply("notify { \"${leader('db')}\": }")
    assert done.code == 1
    assert "the agent's answer to leader('db') is not a node name" in done.errors[0]


def test_compiling_a_catalog_takes_no_lease(bench: Bench) -> None:
    agent = bench.listen()
    site = bench.directory / "site.pp"
    site.write_text("node default { notify { leader('db'): } }")
    done = completed(
        *("puppet", "catalog", "compile", "node1", "--confdir", "conf", "--vardir", "var"),
        *("--modulepath", MODULES, "--manifest", site),
        cwd=bench.directory,
        env={"PATH": "/usr/bin:/bin", "LOCALPUPPET_SOCKET": str(agent.path)},
    )
    assert "web01.example.com" in done.out
    assert [question["take"] for question in agent.questions] == [False]


def test_puppet_holds_a_lock_from_its_resource_to_the_end_of_the_catalog(bench: Bench) -> None:
    ran = bench.directory / "ran"
    seen: list[tuple[str, str, bool]] = []

    def answer(question: Question) -> Answer:
        seen.append((question["verb"], question["name"], ran.exists()))
        return agree(question)

    agent = bench.listen(answer)
    done = bench.apply(
        f"""
        cluster_lock {{ 'first': wait => 5 }}
        -> cluster_lock {{ 'second': }}
        -> exec {{ '/bin/touch {ran}': creates => '{ran}' }}
        -> exec {{ '/bin/false': }}
        """,
        LOCALPUPPET_RUN="run-1",
    )
    assert done.code == 6, done.text
    assert seen == [
        ("lock", "first", False),
        ("lock", "second", False),
        ("unlock", "second", True),
        ("unlock", "first", True),
    ]
    assert agent.questions[0] == {"verb": "lock", "name": "first", "wait": 5, "run": "run-1"}
    assert agent.questions[1]["wait"] == 60
    assert agent.questions[3] == {"verb": "unlock", "name": "first", "run": "run-1"}


def test_a_lock_resource_reports_no_change(bench: Bench) -> None:
    agent = bench.listen()
    done = bench.apply("cluster_lock { 'x': } ~> trigger { 't': hosts => ['a'] }")
    assert done.code == 0, done.text
    assert done.report["status"] == "unchanged"
    assert [question["verb"] for question in agent.questions] == ["lock", "unlock"]


def test_if_a_lock_is_refused_its_resource_fails_and_dependents_skip(bench: Bench) -> None:
    def answer(question: Question) -> Answer:
        if question["verb"] == "lock" and question["name"] == "held":
            return {"ok": False, "error": "held: web02.example.com has it, waited 1 s"}
        if question["verb"] == "lock" and question["name"] == "unclear":
            return ""
        if question["name"] == "lost":
            return agree(question) if question["verb"] == "lock" else {"ok": False, "error": "gone"}
        return agree(question)

    agent = bench.listen(answer)
    done = bench.apply(
        """
        cluster_lock { 'held': wait => 1 } -> notify { 'needs it': }
        cluster_lock { 'unclear': }
        cluster_lock { 'lost': }
        notify { 'another': }
        """
    )
    assert done.code == 6, done.text
    main = "Error: /Stage[main]/Main/Cluster_lock"
    text = "held: web02.example.com has it, waited 1 s"
    assert f"{main}[held]: Could not evaluate: {text}" in done.lines
    assert "Error: Cluster_lock[lost]: could not be released: gone" in done.lines
    assert done.resource("Cluster_lock[held]")["failed"]
    assert done.resource("Notify[needs it]")["skipped"]
    assert done.resource("Notify[another]")["changed"]
    # If the answer was lost, Puppet may have the lock; if it was refused, Puppet has no lock.
    assert [question["name"] for question in agent.asked("unlock")] == ["lost", "unclear"]


def test_puppet_releases_its_lock_on_sigterm(bench: Bench) -> None:
    agent = bench.listen()
    puppet = bench.start(
        f"""
        cluster_lock {{ 'x': }}
        -> exec {{ 'wait': command => '/bin/sh -c "touch {bench.directory}/started; sleep 600"' }}
        """
    )
    try:
        wait_until((bench.directory / "started").exists, lambda: "Puppet has not begun")
        puppet.send_signal(signal.SIGTERM)
        done = bench.finish(puppet)
    finally:
        puppet.kill()
    assert done.code != 0
    assert [question["verb"] for question in agent.questions] == ["lock", "unlock"]


GOOD = ["db", "_x", "9", "a.b-c_D", "x" * 100]
WAIT = {"wait": "60"}
BAD = ["a@b", "a:b", "-x", ".x", "x" * 101]


def test_puppet_and_agent_accept_the_same_names(bench: Bench) -> None:
    agent = bench.listen()
    for name in GOOD:
        assert parse_lease_name(name) == name
    done = bench.apply(
        "\n".join(f"leader('{name}')\ncluster_lock {{ '{name}': }}" for name in GOOD)
    )
    assert done.code == 0, done.text
    assert {question["name"] for question in agent.asked("lock")} == set(GOOD)
    assert {question["name"] for question in agent.asked("leader")} == set(GOOD)


def test_puppet_and_agent_refuse_the_same_names(bench: Bench) -> None:
    agent = bench.listen()
    for name in BAD:
        with pytest.raises(InvalidInputError):
            parse_lease_name(name)
    names = [*BAD, "x/y"]
    *problems, wait = bench.refusals("cluster_lock", [*({"name": name} for name in names), WAIT])
    for problem in problems:
        assert "must be up to 100 letters, digits and '_ . -'" in problem
    assert wait == "Parameter wait failed on Cluster_lock[x]: must be an integer"
    for name in BAD[::2]:
        assert bench.apply(f"leader('{name}')").code == 1
    assert agent.questions == []


def agent_class(bench: Bench, *more: str, services: bool = False) -> str:
    """Return the class with all its files in the directory of the test."""
    command = bench.program("lp", 'echo "[Unit]"; echo "# $*"')
    (bench.directory / "units").mkdir(exist_ok=True)
    parameters = ",\n".join(
        (
            f"config => '{bench.directory}/agent.yaml'",
            f"unit_directory => '{bench.directory}/units'",
            f"command => '{command}'",
            f"manage_service => {json.dumps(services)}",
            # A test must not create users on the machine that runs it.
            *(() if services else ("manage_user => false",)),
            *more,
        )
    )
    return f"class {{ 'localpuppet::agent':\n{parameters}\n}}"


def test_the_agent_class_installs_configuration_and_units(bench: Bench) -> None:
    config = bench.directory / "agent.yaml"
    units = bench.directory / "units"
    done = bench.apply(agent_class(bench), "--show_diff")
    assert done.code == 2, done.text
    assert json.loads(config.read_text()) == {"bus": "sqlite", "agent": {"run_interval": "30m"}}
    assert config.stat().st_mode & 0o777 == 0o600
    unit = units / "localpuppet-agent.service"
    assert unit.read_text() == "[Unit]\n# units localpuppet-agent.service\n"
    assert bench.apply(agent_class(bench)).code == 0

    done = bench.apply(
        agent_class(
            bench,
            "split => true",
            "group => 'root'",
            "node => 'Web01.Example.com'",
            "run_cmd => 'puppet agent --test'",
            "run_interval => false",
            "bus => nats",
            "buses => { nats => { servers => ['nats://n'], ca => undef,"
            ' user => Sensitive("s3cret\\u2028\\n: x") } }',
        ),
        "--show_diff",
    )
    assert done.code == 2, done.text
    assert config.stat().st_mode & 0o777 == 0o640
    assert "s3cret" not in done.text
    assert "s3cret" not in json.dumps(done.report)
    assert "\\u2028\\n: x" in config.read_text()
    assert json.loads(config.read_text()) == {
        "node": "web01.example.com",
        "bus": "nats",
        "buses": {"nats": {"servers": ["nats://n"], "user": "s3cret\u2028\n: x"}},
        "agent": {"run_interval": False, "run_cmd": "puppet agent --test"},
    }
    assert sorted(path.name for path in units.iterdir()) == [
        "localpuppet-agent-net.service",
        "localpuppet-agent-run.service",
        "localpuppet-agent-run.socket",
    ]

    assert bench.apply(agent_class(bench, "ensure => absent")).code == 2
    assert not config.exists()
    assert list(units.iterdir()) == []


def test_the_agent_class_manages_the_services_of_its_form(bench: Bench) -> None:
    single = ("agent.service",)
    split = ("agent-run.socket", "agent-run.service", "agent-net.service")
    parameters = ("split => true", "bus => nats", "group => 'root'")
    for more, units in (((), single), (parameters, split)):
        done = bench.apply(agent_class(bench, *more, services=True), "--noop")
        assert done.code == 0, done.text
        changes = {
            name for name, status in done.report["resource_statuses"].items() if status["events"]
        }
        services = {f"Service[localpuppet-{unit}]" for unit in units}
        assert {name for name in changes if name.startswith("Service")} == services
    # The machine that runs the tests may have that user already.
    assert {"User[localpuppet]", "Group[localpuppet]"} <= set(done.report["resource_statuses"])


def test_a_split_agent_on_a_sqlite_bus_compiles_no_catalog(bench: Bench) -> None:
    done = bench.apply(agent_class(bench, "split => true", "group => 'root'"))
    assert done.code == 1
    assert "split cannot use bus 'sqlite' (set bus to 'nats' or 'etcd')" in done.errors[0]
    assert not (bench.directory / "agent.yaml").exists()


def test_an_error_names_a_missing_localpuppet_command(bench: Bench) -> None:
    code = agent_class(bench).replace(f"{bench.directory}/bin/lp", "/no/such")
    done = bench.apply(code)
    assert done.code == 1
    text = "/no/such units localpuppet-agent.service: cannot be run: No such file or directory"
    (error,) = done.errors
    # Puppet 8 puts a prefix before the message.
    assert error.removeprefix("Error: ").removeprefix("Failed to apply catalog: ") == text


def test_the_watcher_class_of_puppet_trigger_configures_the_agent_on_etcd(bench: Bench) -> None:
    agent_class(bench)
    data = {
        "localpuppet::agent::config": f"{bench.directory}/agent.yaml",
        "localpuppet::agent::unit_directory": f"{bench.directory}/units",
        "localpuppet::agent::command": f"{bench.directory}/bin/lp",
        "localpuppet::agent::manage_service": False,
    }
    hiera = bench.directory / "hiera"
    hiera.mkdir()
    (hiera / "common.yaml").write_text(json.dumps(data))
    levels = [{"name": "all", "path": "common.yaml", "data_hash": "yaml_data", "datadir": "hiera"}]
    (bench.directory / "hiera.yaml").write_text(json.dumps({"version": 5, "hierarchy": levels}))
    options = ("--hiera_config", str(bench.directory / "hiera.yaml"))

    old = bench.program("etcdwatch", "exit 0")
    code = f"""
        include trigger
        class {{ 'trigger::watch::etcd':
          trigger_hostname => 'LB01.example.com',
          etcdctl_cmd      => '/usr/bin/etcdctl',
          etcdctl_prefix   => '/other/hosts',
          run_cmd          => 'puppet apply manifest.pp',
          etcdwatch_pwd    => '{old}',
        }}
        """
    # With --noop, because the class also removes files in /etc/init.d of this machine.
    done = bench.apply(code, *options, "--noop")
    assert done.code == 0, done.text
    assert sum("etcdctl_cmd is ignored" in line for line in done.lines) == 1
    assert sum("etcdwatch_pwd only says" in line for line in done.lines) == 1
    # Puppet 8 words the event differently.
    ways = ("current_value 'file', should be 'absent' (noop)", "removed (noop)")
    assert any(f"File[{old}]/ensure: {way}" in done.text for way in ways)

    done = bench.apply(code, *options, "--tags", "localpuppet::agent")
    assert done.code == 2, done.text
    config = bench.directory / "agent.yaml"
    assert json.loads(config.read_text()) == {
        "node": "lb01.example.com",
        "bus": "etcd",
        "buses": {"etcd": {"servers": ["http://127.0.0.1:2379"]}},
        "agent": {
            "run_interval": "30m",
            "run_cmd": "puppet apply manifest.pp",
            "keyprefix": "/other",
        },
    }

    done = bench.apply("include trigger::watch::etcd", *options, "--noop")
    assert "ignored" not in done.text
    assert "Warning: Scope" not in done.text
    done = bench.apply(
        "class { 'trigger::watch::etcd': etcdctl_prefix => '/x' }", *options, "--noop"
    )
    assert done.code == 1
    assert "etcdctl_prefix must end in /hosts" in done.errors[0]
