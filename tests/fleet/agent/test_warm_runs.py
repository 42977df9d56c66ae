"""Runs from the fork server beside cold ones, on the real Puppet: the same, also in trouble."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.machine.ports import NOBODY
from localpuppet.node.app import NodeApp
from tests.node.releases.environment_code import tag_control, values, values_by_puppet
from tests.rigs.forge import Forge
from tests.rigs.long import with_sample
from tests.rigs.node import Node, completed, make_node, processes_with
from tests.rigs.warm.node import WarmNode

# What a process reports about itself, apart from the directories of nodes and runs.
SELF = """
Puppet::Functions.create_function(:'app::self') do
  dispatch(:tell) {}
  def tell
    File.write('@FILE@', JSON.generate(
      env: ENV.to_h, umask: File.umask, cwd: Dir.pwd, argv: ARGV, name: $PROGRAM_NAME,
      limits: %i[NOFILE CORE STACK NPROC].to_h { |name| [name, Process.getrlimit(name)] },
      nice: Process.getpriority(Process::PRIO_PROCESS, 0), leads: Process.getpgrp == Process.pid,
      session: Process.getsid, signals: File.readlines('/proc/self/status').grep(/^Sig[BIC]|^Cpus/),
      cgroup: File.read('/proc/self/cgroup'), oom: File.read('/proc/self/oom_score_adj'),
      stdin: File.readlink('/proc/self/fd/0'), sync: [$stdout.sync, $stderr.sync, $stdout.tty?],
      encodings: [Encoding.default_external, Encoding.default_internal, $stdout.external_encoding,
                  Encoding.find('locale')].map(&:to_s),
      passed_on: `ls -l /proc/self/fd | sed 's/.* //; s/[0-9]*//g'`,
      load_path: $LOAD_PATH, verbose: $VERBOSE.inspect
    ))
    nil
  end
end
"""
# An expensive fact, which facter.conf caches; facter.conf also blocks a fact of Facter.
ASKED = """#!/bin/sh
printf once >>@FILE@
echo asked=$(cat @FILE@)
"""
FACTER_CONF = 'facts: {ttls: [{"asked.sh": 1 hours}], blocklist: ["timezone"]}\n'
CHANGED = "the fork server: {} has changed since the fork server read it"
ZONE = time.localtime().tm_zone
OTHER = "the fork server: its puppet.facter_conf is another than when the agent started"
# A run that waits for the file `go` between two resources, and one that waits to be killed.
WAITS = """
notify { 'a': } ->
exec { '/bin/sh -c "while [ ! -e @ROOT@/go ]; do sleep 0.1; done"': } ->
notify { 'b': }
"""
FOREVER = "exec { '/bin/sleep 600': }"
CASES = {
    "changed": "notify { 'a': message => 'é 😀' }\nfile { '@ROOT@/x': content => 'x' }",
    "unchanged": "file { '@ROOT@': ensure => directory }\nwarning('as it is')",
    "failed": "exec { '/bin/false': } -> notify { 'skipped': }",
    "not compiled": "fail('by hand')",
    "escapes": 'notify { "\\e[31mred": }',
}


@pytest.fixture(scope="module")
def forms(
    tmp_path_factory: pytest.TempPathFactory, puppet_probe: str
) -> Iterator[dict[str, WarmNode]]:
    top = tmp_path_factory.mktemp("forms")
    made = {
        form: WarmNode(make_node(top / form, puppet_probe), warm=form == "warm")
        for form in ("warm", "cold")
    }
    yield made
    for one in made.values():
        one.end()
        one.node.end()


@pytest.fixture
def warm(forms: dict[str, WarmNode]) -> WarmNode:
    return forms["warm"]


def same(text: str, one: WarmNode, run: str) -> str:
    """Return a text without what is another in each run."""
    text = text.replace(str(one.node.root), "@ROOT@").replace(run, "@RUN@")
    return re.sub(r"\d+\.\d+ seconds|\{md5\}\w+|\{sha256\}\w+", "@", text)


def was_warm(one: WarmNode, status: dict[str, Any]) -> bool:
    assert status.get("cold_reason", "") == ""
    return status.get("warm", False) is True


@pytest.mark.parametrize("case", with_sample(CASES, "changed", "failed", "escapes"))
def test_a_warm_run_has_the_result_of_a_cold_run(forms: dict[str, WarmNode], case: str) -> None:
    told = []
    for form, one in forms.items():
        one.node.app(CASES[case].replace("@ROOT@", str(one.node.root)))
        status = one.run("noop" if case == "escapes" else "run")
        assert was_warm(one, status) is (form == "warm")
        report = one.node.state / "runs" / status["id"] / "report.json"
        resources = (
            sorted(json.loads(report.read_text())["resource_statuses"]) if report.exists() else []
        )
        seen = (one.text(status["id"]), status["reason"], json.dumps(resources))
        texts = [same(text, one, status["id"]) for text in seen]
        keys = ("outcome", "exit_code", "signal", "resources", "noop")
        told.append([*texts, *(status[key] for key in keys)])
    assert told[0] == told[1]


def test_a_warm_run_has_the_certname_of_the_node(forms: dict[str, WarmNode]) -> None:
    for form, one in forms.items():
        one.node.app("notify { \"${trusted['certname']}\": }")
        for name in ("web01.example.com", "web02.example.com"):
            one.settings(node=name)
            status = one.run()
            assert was_warm(one, status) is (form == "warm")
            assert f"Notice: {name}\n" in one.text(status["id"])
        one.settings()


def test_the_process_of_a_warm_run_equals_that_of_a_cold_run(forms: dict[str, WarmNode]) -> None:
    told = []
    for one in forms.values():
        file = one.node.root / "self.json"
        one.node.app("app::self()")
        one.node.write(
            "modules/app/trunk/app/lib/puppet/functions/app/self.rb",
            SELF.replace("@FILE@", str(file)),
        )
        status = one.run()
        assert status["outcome"] == "unchanged", one.text(status["id"])
        said = json.loads(same(file.read_text(), one, status["id"]))
        assert said["env"].pop("LOCALPUPPET_RUN") == "@RUN@"
        told.append(said)
        assert not Path(f"/proc/{status['puppet']['pid']}").exists()
    assert told[0] == told[1]


def test_a_run_leaves_nothing_for_the_next_run(warm: WarmNode) -> None:
    node = warm.node
    tells = "app::plant()\nwarning(\"the fact is '${facts['planted']}', ${length('abc')}\")"
    node.app(tells)
    lib = "modules/app/trunk/app/lib"
    node.write(
        f"{lib}/puppet/functions/app/plant.rb",
        "Object.const_set(:PLANTED, 1)\nclass ::String\n  def planted; end\nend\n"
        "Puppet::Functions.create_function(:'app::plant') do\n"
        "  dispatch(:plant) {}\n"
        "  def plant\n    ENV['PLANTED'] = '1'\n    $planted = 1\n    Dir.chdir('/tmp')\n"
        "    Puppet::Type.type(:planted).provider(:planted)\n    nil\n  end\nend\n",
    )
    node.write(
        f"{lib}/puppet/functions/length.rb",
        "Puppet::Functions.create_function(:length) do\n"
        "  dispatch(:length) { param 'Any', :what }\n"
        "  def length(_what) = 3\nend\n",
    )
    node.write(f"{lib}/facter/planted.rb", "Facter.add(:planted) { setcode { 'here' } }\n")
    node.write(
        f"{lib}/puppet/type/planted.rb", "Puppet::Type.newtype(:planted) { newparam(:name) }\n"
    )
    node.write(
        f"{lib}/puppet/provider/planted/planted.rb",
        "Puppet::Type.type(:planted).provide(:planted)\n",
    )
    first = warm.run()
    server = warm.server.process()
    assert was_warm(warm, first)
    assert first["outcome"] == "unchanged", warm.text(first["id"])
    assert "the fact is 'here', 3" in warm.text(first["id"])
    node.app(tells, name="other")
    node.write(
        "modules/other/trunk/app/lib/puppet/functions/app/plant.rb",
        "Puppet::Functions.create_function(:'app::plant') do\n"
        "  dispatch(:look) {}\n"
        "  def look\n"
        "    found = [Object.const_defined?(:PLANTED), ''.respond_to?(:planted),\n"
        "             ENV.key?('PLANTED'), !$planted.nil?, Dir.pwd != '/',\n"
        "             !Puppet::Type.type(:planted).nil?]\n"
        '    Puppet.warning("found #{found.inspect}")\n    nil\n  end\nend\n',
    )
    second = warm.run()
    assert was_warm(warm, second)
    assert warm.server.process() == server != NOBODY, "the same server made both"
    text = warm.text(second["id"])
    assert f"found {json.dumps([False] * 6)}" in text
    assert "the fact is '', 3" in text


@pytest.fixture
def own(tmp_path: Path, puppet_probe: str) -> Iterator[Node]:
    """Yield a node with its own facter.conf, and a fact that counts its evaluations."""
    node = make_node(tmp_path / "n", puppet_probe)
    node.write("facter.conf", FACTER_CONF)
    asked = ASKED.replace("@FILE@", str(node.root / "asked"))
    node.write("puppet/var/facts.d/asked.sh", asked, 0o755)
    node.app("warning(\"asked ${facts['asked']}, ${facts['timezone']}\")")
    yield node
    node.end()


def test_facter_is_configured_by_the_node(own: Node) -> None:
    own.settings(puppet={"facter_conf": "facter.conf"})
    for _ in range(2):
        assert ": asked once, \n" in own.run("apply").out
    kept = own.state / "cache" / "facts"
    assert [path.name for path in kept.iterdir()] == ["asked.sh"]
    assert kept.stat().st_mode & 0o077 == 0
    (own.root / "facter.conf").chmod(0o666)
    for command in ("apply", "check"):
        done = own.run(command)
        assert (done.code, "facter.conf: is writable by others" in done.err) == (2, True), done.err


def test_a_run_with_another_facter_conf_than_the_servers_is_cold(own: Node) -> None:
    one = WarmNode(own, warm=True, facter_conf="facter.conf")

    def says(words: str) -> dict[str, Any]:
        status = one.run()
        assert f": asked {words}\n" in one.text(status["id"]), one.text(status["id"])
        return status

    try:
        for _ in range(2):
            assert was_warm(one, says("once, "))
        conf = own.write("facter.conf", "facts: {}\n")
        assert says(f"onceonce, {ZONE}")["cold_reason"] == CHANGED.format(conf)
        one.settings()
        assert says(f"onceonceonce, {ZONE}")["cold_reason"] == OTHER
    finally:
        one.end()


def test_a_server_ends_after_a_run_that_changed_something(warm: WarmNode) -> None:
    warm.node.app("warning('as it is')")
    assert was_warm(warm, warm.run())
    before = warm.server.process()
    warm.node.app("notify { 'changed': }")
    assert was_warm(warm, warm.run())
    warm.node.wait_until(lambda: warm.server.process() == NOBODY)
    assert was_warm(warm, warm.run())
    assert before not in (NOBODY, warm.server.process())


def test_a_module_in_place_of_puppets_own_code_runs_cold(warm: WarmNode) -> None:
    warm.node.app("notify { 'a': }")
    file = "puppet/type/notify.rb"  # where Debian has it depends on the package
    theirs = completed("ruby", "-e", "print Gem.find_files(ARGV[0]).first", file).out
    path = warm.node.write(f"modules/app/trunk/app/lib/{file}", Path(theirs).read_text())
    status = warm.run()
    path.unlink()
    assert status["outcome"] == "changed"
    assert status["warm"] is False
    assert status["cold_reason"] == f"the fork server: {path} takes the place of Puppet's own"


def kill(pid: int) -> None:
    assert pid, "the process has ended"
    os.kill(pid, signal.SIGKILL)


def begin_waiting(warm: WarmNode) -> tuple[Path, dict[str, Any]]:
    """Begin a run that waits for a file; return that file, and the record."""
    go = warm.node.root / "go"
    go.unlink(missing_ok=True)
    warm.node.app(WAITS.replace("@ROOT@", str(warm.node.root)))
    warm.begin()
    return go, warm.node.wait_running()


def test_a_killed_puppet_is_a_failed_run(warm: WarmNode) -> None:
    warm.node.app(FOREVER)
    warm.begin()
    kill(warm.node.wait_running()["puppet"]["pid"])
    status = warm.over()
    assert was_warm(warm, status)
    assert (status["outcome"], status["signal"], status["exit_code"]) == ("failed", 9, None)
    assert status["reason"] == "signal 9 killed Puppet"


def test_a_run_whose_server_is_killed_has_its_full_result(warm: WarmNode) -> None:
    go, _ = begin_waiting(warm)
    kill(warm.server.process().pid)
    go.touch()
    status = warm.over()
    assert was_warm(warm, status)
    # The exit code is that which Puppet wrote.
    assert (status["outcome"], status["exit_code"]) == ("changed", 2)
    warm.node.app("warning('as it is')")
    after = warm.run("alone")
    assert after["outcome"] == "unchanged"
    assert after["cold_reason"] == "the fork server: is not running"


def test_if_server_and_puppet_are_killed_the_run_has_no_known_exit_code(warm: WarmNode) -> None:
    warm.node.app(FOREVER)
    warm.begin()
    puppet = warm.node.wait_running()["puppet"]["pid"]
    kill(warm.server.process().pid)
    kill(puppet)
    status = warm.over()
    assert status["outcome"] == "failed"
    assert status["reason"].startswith("exit code of Puppet unknown")
    assert (status["exit_code"], status["signal"]) == (None, None)


def test_a_killed_supervisor_leaves_the_node_to_its_puppet(warm: WarmNode) -> None:
    go, record = begin_waiting(warm)
    kill(record["supervisor"]["pid"])
    puppet = Path(f"/proc/{record['puppet']['pid']}")
    assert puppet.exists()
    warm.node.run("apply", code=75)
    assert warm.node.status()["outcome"] == "interrupted"
    go.touch()
    warm.node.wait_until(lambda: not puppet.exists())
    report = warm.node.state / "runs" / record["id"] / "report.json"
    assert "defined 'message' as 'b'" in report.read_text(), "its run ended as it should"
    assert warm.told()["outcome"] == "interrupted"
    warm.node.app("warning('as it is')")
    assert was_warm(warm, warm.run())


def test_a_run_past_its_timeout_is_ended_with_all_it_started(warm: WarmNode) -> None:
    begun, both = warm.node.root / "begun", ("1071.0625", "1072.0625")
    sleep = " & ".join(f"sleep {seconds}" for seconds in both)
    warm.node.app(f"exec {{ '/bin/sh -c \"touch {begun}; {sleep}\"': }}")
    for seconds in (4, 30, 120):  # long enough for the command to begin
        warm.node.settings(agent={"warm": True}, timeouts={"grace": 1, "run": seconds})
        status = warm.run()
        if begun.exists():
            break
    assert was_warm(warm, status)
    assert status["outcome"] == "timed_out"
    warm.node.wait_until(lambda: not processes_with(*both))
    warm.settings()


def test_an_agent_makes_warm_runs_and_takes_its_server_with_it(node: Node) -> None:
    node.settings(agent={"warm": True, "run_interval": "2s"}, socket=str(node.root / "a.sock"))
    node.app("warning('as it is')")
    agent = node.start("agent")
    server = NodeApp(str(node.root)).fork_server
    metrics = node.state / "metrics.prom"

    def measured() -> bool:
        """Return whether a warm run left its server running, as a run with compiled Ruby does."""
        text = metrics.read_text() if metrics.exists() else ""
        memory = "\nlocalpuppet_fork_server_resident_memory_bytes "
        return "\nlocalpuppet_last_run_warm 1\n" in text and memory in text

    def shown() -> bool:
        kept = node.run("status", "--json").json["fork_server"]
        return kept is not None and kept["memory_bytes"] > 2**20

    def written() -> bool:
        text = node.run("status").out
        return "Fork server" in text and "started warm" in text

    # If Ruby was compiled after the first run, the agent replaces the server; until then none runs.
    for condition in (measured, shown, written, lambda: server.process() != NOBODY):
        node.wait_until(condition)
    agent.kill()
    node.finish(agent)
    node.wait_until(lambda: server.process() == NOBODY)
    assert node.run("status", "--json").json["fork_server"] is None


def test_a_warm_run_has_the_values_of_the_environment_too(node: Node, tmp_path: Path) -> None:
    control = tag_control(node, Forge(tmp_path / "forge"))
    sources = {"control": {"git": f"file://{control}"}}
    node.run("stage", code=0)
    host = WarmNode(node, warm=True)
    try:
        node.settings(agent={"warm": True}, allow_file_urls=True, sources=sources)
        record = host.run("noop")
        assert record["warm"], record["cold_reason"]
        assert values(host.text(record["id"])) == values_by_puppet(control, tmp_path)
    finally:
        host.end()
