"""The types `kick` and `application_component`, and the report processor `kick`, with Puppet."""

import json

from tests.rigs.agent_peer import Answer, Question
from tests.rigs.bench import Applied, Bench

MAIN = "/Stage[main]/Main"
WITH_REPORT = ("--reports", "kick")
CHANGE = "exec { '/bin/true': }"


def noted(bench: Bench, what: str = "kicks") -> list[dict[str, object]]:
    """Return what Puppet recorded for the inventory."""
    file = bench.directory / "public" / f"{what}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_puppet_sends_only_refreshed_kicks_and_records_all(bench: Bench) -> None:
    def answer(question: Question) -> Answer:
        if question["name"] == "matchless":
            return {"ok": True, "receivers": [], "deferred": False, "sent": [], "dropped": []}
        drop = {"node": "lb02", "reason": "its name is in\nthe path"}
        to = ["lb01", "lb02"]
        return {"ok": True, "receivers": to, "deferred": True, "sent": to[:1], "dropped": [drop]}

    agent = bench.listen(answer)
    done = bench.apply(
        """
        kick { 'silent': query => 'Class[Dns]' }
        notify { 'a': } ~> kick { 'both': roles => ['haproxy', 'dns', 'dns'], tag => 'blue' }
        -> notify { 'b': } ~> kick { 'matchless': roles => 'nosuch', ttl => 60 }
        """,
        LOCALPUPPET_RUN="run-1",
    )
    assert done.code == 2, done.text
    both = {
        "verb": "kick",
        "name": "both",
        "roles": ["haproxy", "dns"],
        "query": None,
        "tags": ["blue"],
        "ttl": None,
        "run": "run-1",
    }
    assert agent.questions == [
        both,
        {**both, "name": "matchless", "roles": ["nosuch"], "tags": [], "ttl": 60},
    ]
    assert f"Notice: {MAIN}/Kick[both]: kicks lb01 after this run" in done.lines
    assert f"Notice: {MAIN}/Kick[both]: not sent to lb02: its name is in the path" in done.lines
    assert (
        f"Notice: {MAIN}/Kick[matchless]: no other node matches, so no kick is sent" in done.lines
    )
    assert done.was_left_alone("Kick[silent]")
    assert noted(bench) == [
        {"schema": 1, "roles": [], "query": "Class[Dns]"},
        {"schema": 1, "roles": ["haproxy", "dns"], "query": None},
        {"schema": 1, "roles": ["nosuch"], "query": None},
    ]


def test_a_kick_fails_if_the_agent_refuses_it_or_its_answer_omits_a_node(bench: Bench) -> None:
    answers: dict[str, Answer] = {
        "refused": {"ok": False, "error": "kick: could not query the nodes to run"},
        "omitted": {"ok": True, "receivers": ["a", "b"], "sent": ["a"], "dropped": []},
    }
    bench.listen(lambda question: answers[question["name"]])
    done = bench.apply("notify { 'a': } ~> kick { ['refused', 'omitted']: roles => ['haproxy'] }")
    assert done.code == 6, done.text
    for name, text in (
        ("refused", "could not query the nodes to run"),
        ("omitted", "did not say whether it sent to b"),
    ):
        assert done.resource(f"Kick[{name}]")["failed_to_restart"]
        assert [line for line in done.errors if f"Kick[{name}]" in line and text in line]


def test_puppet_sends_no_kick_in_noop_mode(bench: Bench) -> None:
    agent = bench.listen()
    done = bench.apply(
        f"""
        notify {{ 'a': }} ~> kick {{ 'x': roles => 'haproxy' }}
        notify {{ 'kick -> a': }} {CHANGE}
        """,
        "--noop",
        *WITH_REPORT,
        LOCALPUPPET_KICK="always",
    )
    assert (done.code, agent.questions) == (0, []), done.text
    assert not noted(bench)  # without a supervisor no process reads the records


REFUSED: list[tuple[dict[str, object], str]] = [
    ({}, "needs roles or a query, and not both"),
    ({"roles": ["a"], "query": "b"}, "needs roles or a query, and not both"),
    ({"roles": []}, "must be one string or several"),
    ({"roles": [""]}, "must be one string or several"),
    ({"roles": [7]}, "must be one string or several"),
    ({"query": " "}, "must be a string that is not empty"),
    ({"roles": "a", "ttl": 3601}, "must be between 1 and 3600"),
]


def test_an_invalid_kick_is_refused_before_puppet_applies_a_resource(bench: Bench) -> None:
    problems = bench.refusals("kick", [parameters for parameters, _ in REFUSED])
    for (parameters, error), problem in zip(REFUSED, problems, strict=True):
        assert error in problem, (parameters, problem)


def report(bench: Bench, code: str, **env: str) -> Applied:
    return bench.apply(code, "--verbose", *WITH_REPORT, **env)


def test_the_notify_of_the_predecessor_sends_one_kick_after_a_change(bench: Bench) -> None:
    agent = bench.listen()
    done = report(
        bench,
        f"""
        notify {{ 'kick -> haproxy': }}
        notify {{ ['kick ->haproxy, dns', 'kick -> web']: }}
        notify {{ 'kick': }}
        {CHANGE}
        """,
        LOCALPUPPET_RUN="run-1",
    )
    assert done.code == 2, done.text
    assert agent.questions == [
        {
            "verb": "kick",
            "name": "report",
            "roles": ["haproxy", "dns", "web"],
            "query": None,
            "tags": [],
            "ttl": None,
            "run": "run-1",
        }
    ]
    assert "Notice: kicks lb01 after this run" in done.lines
    assert [one["roles"] for one in noted(bench)] == [["haproxy"], ["haproxy", "dns"], ["web"]]


def test_a_notify_without_another_change_kicks_only_if_the_site_enables_it(bench: Bench) -> None:
    agent = bench.listen()
    code = "notify { 'kick -> haproxy': } notify { 'hello': }"
    done = report(bench, code)
    assert "Info: nothing else changed, so no kick is sent" in done.lines
    assert agent.questions == []
    report(bench, code, LOCALPUPPET_KICK="always")
    assert [question["roles"] for question in agent.questions] == [["haproxy"]]


def test_a_failed_kick_of_the_report_processor_stops_no_other_report(bench: Bench) -> None:
    bench.listen(lambda _: {"ok": False, "error": "kick: could not query the nodes to run"})
    done = bench.apply(f"notify {{ 'kick -> haproxy': }} {CHANGE}", "--reports", "kick,store")
    assert done.code == 2, done.text
    assert [line for line in done.errors if "could not query the nodes to run" in line], done.text
    assert list((bench.directory / "var").rglob("reports/*/*.yaml"))


def test_puppet_records_components_and_reports_no_change(bench: Bench) -> None:
    """Puppet also records a component that tags exclude from this run."""
    done = bench.apply(
        """
        application_component { 'Lamp::Mysql[app1]': produces => 'Sql[app1]', tag => 'db' }
        application_component { 'Lamp::Web[app1-1]':
          application => 'Lamp[app1]',
          consumes    => ['Sql[app1]', 'Cache[app1]', 'Sql[app1]'],
        }
        """,
        "--tags",
        "db",
        LOCALPUPPET_RUN="run-1",
    )
    assert done.code == 0, done.text
    assert noted(bench, "components") == [
        {"schema": 1, "name": "Lamp::Mysql[app1]", "produces": ["Sql[app1]"], "consumes": []},
        {
            "schema": 1,
            "name": "Lamp::Web[app1-1]",
            "produces": [],
            "consumes": ["Cache[app1]", "Sql[app1]"],
            "application": "Lamp[app1]",
        },
    ]


def test_an_invalid_component_is_refused(bench: Bench) -> None:
    done = bench.apply("application_component { 'Lamp::Mysql[app1]': produces => ['a', ' b'] }")
    assert done.code == 1
    assert "must be a string of 1 to 255 characters on one line" in done.text
    assert noted(bench, "components") == []
