"""The type `trigger` with the real Puppet: Puppet sends the agent what the manifest declares."""

import json
import shlex
from typing import Any

from tests.rigs.agent_peer import Answer, Question, agree
from tests.rigs.bench import MODULES, Bench

DEFAULTS: Question = {
    "verb": "trigger",
    "tags": [],
    "ttl": None,
    "keyprefix": "/puppet_trigger/events",
    "keyttl": 180,
    "engine": None,
    "run": None,
}


def test_puppet_sends_only_refreshed_triggers(bench: Bench) -> None:
    def answer(question: Question) -> Answer:
        if question["name"] != "drops":
            return agree(question)
        drop = {"node": "lb01.example.com", "reason": "its name is in\nthe path"}
        return {"ok": True, "sent": ["lb02.example.com"], "dropped": [drop]}

    agent = bench.listen(answer)
    bench.program("etcdctl", "exit 1")  # with it, the predecessor warned of two default providers
    done = bench.apply(
        """
        trigger { 'silent': hosts => ['lb01.example.com'] }
        notify { 'a': }
        ~> trigger { 'plain': hosts => ['lb01.example.com', 'lb02.example.com'] }
        -> notify { 'b': }
        ~> trigger { 'all set':
          hosts     => 'LB01.Example.com.',
          ttl       => 60,
          keyprefix => '/other',
          keyttl    => 30,
          tag       => ['blue', 'green'],
          provider  => etcd,
        }
        -> notify { 'c': } ~> trigger { 'on nats': hosts => ['a', 'A.'], provider => nats }
        -> notify { 'd': } ~> trigger { 'drops': hosts => ['lb01.example.com', 'lb02.example.com'] }
        -> notify { 'e': } ~> trigger { 'no hosts': }
        -> notify { 'f': } ~> trigger { 'nothing': hosts => ['a'], provider => dummy }
        """,
        LOCALPUPPET_RUN="run-1",
    )
    assert done.code == 2, done.text
    assert "Found multiple default providers" not in done.text
    lbs = ["lb01.example.com", "lb02.example.com"]
    plain = {**DEFAULTS, "run": "run-1"}
    assert agent.questions == [
        {**plain, "name": "plain", "hosts": lbs},
        {
            **plain,
            "name": "all set",
            "hosts": ["lb01.example.com"],
            "ttl": 60,
            "keyprefix": "/other",
            "keyttl": 30,
            "tags": ["blue", "green"],
            "engine": "etcd",
        },
        {**plain, "name": "on nats", "hosts": ["a"], "engine": "nats"},
        {**plain, "name": "drops", "hosts": lbs},
    ]
    main = "Notice: /Stage[main]/Main/Trigger"
    assert f"{main}[drops]: not sent to lb01.example.com: its name is in the path" in done.lines
    assert f"{main}[no hosts]: no hosts, so nothing was sent" in done.lines
    assert f"{main}[nothing]: provider dummy: nothing was sent (to a)" in done.lines
    sent = done.resource("Trigger[plain]")
    assert (sent["changed"], sent["failed"]) == (True, False)
    assert [event["message"] for event in sent["events"]] == ["Triggered 'refresh' from 1 event"]
    assert done.was_left_alone("Trigger[silent]")


def test_puppet_asks_the_agent_for_no_change_in_noop_mode(bench: Bench) -> None:
    agent = bench.listen()
    done = bench.apply(
        """
        $leader = leader('db_master')
        notify { $leader: }
        ~> trigger { 'x': hosts => ['a'] }
        cluster_lock { 'migrate': }
        """,
        "--noop",
    )
    assert done.code == 0, done.text
    trigger = "Notice: /Stage[main]/Main/Trigger[x]"
    assert f"{trigger}: Would have triggered 'refresh' from 1 event" in done.lines
    assert "Would have taken the lock" in done.text
    assert agent.questions == [
        {"verb": "leader", "name": "db_master", "ttl": 60, "take": False, "run": None}
    ]


INTEGER = "must be an integer"
NO_NODE = "is not a node name: write a full DNS name, without wildcards"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "Empty values are not allowed"),
    # As with the predecessor.
    ({"keyttl": "180"}, f"Parameter keyttl failed on Trigger[x]: {INTEGER}"),
    ({"keyttl": 1.5}, INTEGER),
    ({"keyttl": True}, INTEGER),
    ({"keyttl": 0}, "must be at least 1"),
    ({"ttl": "60"}, INTEGER),
    ({"ttl": 3601}, "must be between 1 and 3600"),
    ({"keyprefix": 7}, "must be a string"),
    ({"keyprefix": ["/a"]}, "must be a string"),
    ({"timeout": "9"}, INTEGER),
    ({"hosts": "*.example.com"}, f'"*.example.com" {NO_NODE}'),
    ({"hosts": ["a", "b;reboot"]}, f'"b;reboot" {NO_NODE}'),
    ({"hosts": ["-oProxyCommand=x"]}, f'"-oProxyCommand=x" {NO_NODE}'),
    ({"hosts": ["a b"]}, f'"a b" {NO_NODE}'),
    ({"hosts": ["a\n"]}, f'"a\\n" {NO_NODE}'),
    ({"hosts": ["a\u001b[31m"]}, f'"a\\e[31m" {NO_NODE}'),
    ({"hosts": ["web\u0430.example.com"]}, f'"web\\u0430.example.com" {NO_NODE}'),
    ({"hosts": [""]}, f'"" {NO_NODE}'),
    ({"hosts": ["a" * 64]}, f'"{"a" * 64}" {NO_NODE}'),
    ({"hosts": [".".join(["a" * 63] * 4)]}, NO_NODE),
    ({"hosts": [1]}, f"a value of type Integer {NO_NODE}"),
    ({"hosts": [["a"]]}, f"a value of type Array {NO_NODE}"),
    ({"provider": "command"}, "provider command needs the parameter command"),
    ({"command": "x %{host}"}, "the parameter command needs provider => command"),
    *[
        ({"provider": "command", "command": command}, text)
        for command, text in (
            ("mco", "must have %{host} in one of its arguments"),
            (["mco", "%{node}"], "must have %{host} in one of its arguments"),
            ("%{host} x", "the program cannot depend on %{host}"),
            ("", "must name a program"),
            ("x '%{host}", "has a quote that is not closed"),
            (["x", 1, "%{host}"], "must be a string or an array of strings"),
            ({"x": "%{host}"}, "must be a string or an array of strings"),
        )
    ],
]


def test_an_invalid_trigger_is_refused_in_one_line(bench: Bench) -> None:
    problems = bench.refusals("trigger", [parameters for parameters, _ in REFUSED])
    for (parameters, text), problem in zip(REFUSED, problems, strict=True):
        assert problem.endswith(text), (parameters, problem)
        assert problem.isprintable(), problem


def test_if_the_agent_refuses_a_trigger_its_resource_fails_with_one_line(bench: Bench) -> None:
    bench.listen(lambda _: {"ok": False, "error": "bus: down\x1b[31m\nreally (start etcd)"})
    done = bench.apply(
        """
        notify { 'a': }
        ~> trigger { 'x': hosts => ['a'] }
        -> notify { 'after': }
        """
    )
    assert done.code == 6, done.text
    problem = "Failed to call refresh: bus: down [31m really (start etcd)"
    assert done.errors == [f"Error: /Stage[main]/Main/Trigger[x]: {problem}"]
    status = done.resource("Trigger[x]")
    assert (status["failed"], status["failed_to_restart"]) == (True, True)
    assert [(event["status"], event["message"]) for event in status["events"]] == [
        ("failure", problem)
    ]
    assert done.report["status"] == "failed"
    assert done.resource("Notify[after]")["skipped"]


def limit(name: str) -> int:
    """Return the timeout in seconds: only where the peer hangs, a test waits for it."""
    return 1 if name == "hangs" else 60


def test_an_invalid_or_missing_answer_of_the_agent_is_an_error_in_time(bench: Bench) -> None:
    answers: dict[str, Answer] = {
        "hangs": None,
        "closes": "",
        "half": '{"ok": tr',
        "no json": "what?\n",
        "a list": "[]\n",
        "no verdict": {"sent": ["a"]},
        "odd verdict": {"ok": "yes"},
        "no reason": {"ok": False},
        "not a text": "\udcff\n",
        "forgets": {"ok": True, "sent": [], "dropped": []},
        "too much": "x" * 1_100_000,
    }
    bench.listen(lambda question: answers[question["name"]])
    triggers = "\n".join(
        f"notify {{ '{name}': }} ~> "
        f"trigger {{ '{name}': hosts => ['a'], timeout => {limit(name)} }}"
        for name in answers
    )
    done = bench.apply(triggers)
    assert done.code == 6
    socket = str(bench.peers[-1].path)
    unclear = "(do the agent and the Puppet modules have one version?)"
    unknown = f"{socket}: the answer has an unknown form {unclear}"
    silent = f"{socket}: the connection was closed without an answer {unclear}"
    texts = {
        "hangs": f"{socket}: the agent did not answer within 1 s (see its log; is it overloaded?)",
        "closes": silent,
        "half": unknown,
        "no json": unknown,
        "a list": unknown,
        "no verdict": unknown,
        "odd verdict": unknown,
        "no reason": f"{socket}: refused without a reason",
        "not a text": unknown,
        "forgets": "the agent did not say whether it sent to a",
        "too much": f"{socket}: an answer of more than 1048576 bytes",
    }
    for name, text in texts.items():
        line = f"Error: /Stage[main]/Main/Trigger[{name}]: Failed to call refresh: {text}"
        assert [error for error in done.errors if f"[{name}]" in error] == [line]


def test_if_no_agent_listens_puppet_asks_the_executable(bench: Bench) -> None:
    bench.program(
        "localpuppet",
        'env > env; printf "%s\\n" "$@" > arguments; cat > question\n'
        'echo \'{"ok": true, "sent": ["a"], "dropped": []}\''.replace(
            "> ", f"> {bench.directory}/"
        ),
    )
    done = bench.apply(
        "notify { 'a': } ~> trigger { 'x': hosts => ['a'] }",
        LOCALPUPPET_ROOT="/srv/node",
        LOCALPUPPET_RUN="run-1",
        RUBYOPT="-W0",
        SECRET="s3cret",
    )
    assert done.code == 2, done.text
    assert (bench.directory / "arguments").read_text().split() == ["--root", "/srv/node", "call"]
    question = (bench.directory / "question").read_text()
    assert question.count("\n") == 1
    assert json.loads(question) == {**DEFAULTS, "name": "x", "hosts": ["a"], "run": "run-1"}
    env = (bench.directory / "env").read_text()
    assert "LOCALPUPPET_ROOT=/srv/node\n" in env
    assert "SECRET" not in env
    assert "RUBYOPT" not in env


def test_an_executable_that_fails_is_an_error(bench: Bench) -> None:
    cases = {
        "refuses": ('echo \'{"ok": false, "error": "bus: no"}\'; exit 69', "refresh: bus: no"),
        "breaks": (
            "echo 'lp: oh\033[0m dear' >&2; exit 70",
            "answers: no answer, exit code 70: lp: oh [0m dear (no agent listens on ",
        ),
        "silent": ("exit 0", "answers: no answer, exit code 0 (no agent listens on "),
        "dies": ("kill -9 $$", "answers: no answer, killed by signal 9 ("),
        "hangs": ("sleep 600", "answers: did not end within 1 s, and no agent listens on "),
    }
    branches = "\n".join(
        f'*\'"name":"{name}"\'*) {script} ;;' for name, (script, _) in cases.items()
    )
    bench.program("answers", f'case "$(cat)" in\n{branches}\nesac')
    done = bench.apply(
        "\n".join(
            f"notify {{ '{name}': }} ~> "
            f"trigger {{ '{name}': hosts => ['a'], timeout => {limit(name)} }}"
            for name in cases
        ),
        LOCALPUPPET_COMMAND="answers",
    )
    assert done.code == 6
    assert len(done.errors) == len(cases)
    for name, (_, text) in cases.items():
        (error,) = (line for line in done.errors if f"[{name}]" in line)
        assert text in error
        assert error.isprintable()


def test_an_executable_in_a_directory_with_a_space(bench: Bench) -> None:
    place = bench.directory / "more programs"
    place.mkdir()
    (place / "localpuppet").symlink_to(
        bench.program("answers", """echo '{"ok": true, "sent": ["a"], "dropped": []}'""")
    )
    code = "notify { 'a': } ~> trigger { 'x': hosts => ['a'] }"
    done = bench.apply(code, LOCALPUPPET_COMMAND=shlex.join([str(place / "localpuppet")]))
    assert done.code == 2, done.text
    done = bench.apply(code, LOCALPUPPET_COMMAND="'half")
    assert "LOCALPUPPET_COMMAND: has a quote without its other half" in done.text


def test_it_is_an_error_if_there_is_neither_an_agent_nor_an_executable(bench: Bench) -> None:
    done = bench.apply(
        "notify { 'a': } ~> trigger { 'x': hosts => ['a'] }", LOCALPUPPET_COMMAND="no-such"
    )
    assert done.code == 6
    assert done.errors == [
        "Error: /Stage[main]/Main/Trigger[x]: Failed to call refresh: no-such: cannot be run:"
        f" No such file or directory, and no agent listens on {bench.directory}/none.sock"
        " (start the agent, or put localpuppet on the PATH)"
    ]


def test_any_command_with_a_host_argument_can_be_the_provider(bench: Bench) -> None:
    out = bench.directory / "argv"
    # One argument a line, so that the test would notice a shell.
    bench.program("kick", f'printf "%s\\n" "$@" >> {out}; echo "--$SECRET" >> {out}; exec 2>&1')
    bench.program("part", '[ "$1" != b ] || { echo "b is\tdown" >&2; exit 3; }')
    bench.program("slow", "sleep 600")
    done = bench.apply(
        """
        notify { 'a': }
        ~> trigger {
          default: provider => command, hosts => ['a.example.com', 'B'];
          'string': command => 'kick "puppet runonce" -I %{host} $HOME;id';
          'array':  command => ['kick', 'root@%{host}', '$(id)', '%{host}%{host}', '%{http_code}'];
        }
        notify { 'b': }
        ~> trigger {
          default: provider => command, hosts => ['a', 'b', 'c'];
          'part':    command => 'part %{host}';
          'slow':    command => 'slow %{host}', hosts => 'a', timeout => 1;
          'missing': command => '/no/such %{host}', hosts => 'a';
        }
        """,
        SECRET="s3cret",
    )
    assert done.code == 6
    hosts = ("a.example.com", "b")
    strings = [["puppet runonce", "-I", host, "$HOME;id", "--"] for host in hosts]
    arrays = [[f"root@{host}", "$(id)", host * 2, "%{http_code}", "--"] for host in hosts]
    assert out.read_text().splitlines() == [word for argv in strings + arrays for word in argv]
    refresh = "Failed to call refresh: could not trigger"
    assert sorted(done.errors) == [
        f"Error: /Stage[main]/Main/Trigger[missing]: {refresh} a: /no/such cannot be run:"
        " No such file or directory",
        f"Error: /Stage[main]/Main/Trigger[part]: {refresh} b: exit code 3: b is down",
        f"Error: /Stage[main]/Main/Trigger[slow]: {refresh} a: slow did not end within 1 s",
    ]


def test_an_error_names_the_missing_module_localpuppet_in_one_line(bench: Bench) -> None:
    only = bench.directory / "only"
    only.mkdir()
    (only / "trigger").symlink_to(MODULES / "trigger")
    done = bench.apply(
        "notify { 'a': } ~> trigger { 'x': hosts => ['a'] }", "--modulepath", str(only)
    )
    assert done.code == 6
    assert "the module localpuppet is not on the modulepath" in done.errors[0]
    assert len(done.errors) == 1
