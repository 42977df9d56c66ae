"""The history checker reports each violation, and no others."""

from typing import Any

import pytest

from tests.simulation.history import check


def event(what: str, node: str = "b", at: int = 0, **more: Any) -> dict[str, Any]:
    return {"at": at, "node": node, "what": what, **more}


def accepted(cause: str, *path: str) -> dict[str, Any]:
    return event("accepted", id=cause, path=path)


def started(run: str, *causes: str) -> dict[str, Any]:
    return event("started", run=run, causes=causes)


def ended(run: str) -> dict[str, Any]:
    return event("ended", run=run)


def dropped(cause: str, reason: str = "expired") -> dict[str, Any]:
    return event("dropped", id=cause, reason=reason)


def sent(run: str | None, to: str, *path: str) -> dict[str, Any]:
    return event("sent", run=run, to=to, path=path)


GOOD = [accepted("x", "a"), started("1", "x"), sent("1", "c", "a", "b"), ended("1")]


@pytest.mark.parametrize(
    "events",
    [
        [],
        GOOD,
        [event("other"), *GOOD, accepted("y"), dropped("y")],
        [*GOOD[:2], event("killed"), ended("1"), started("2", "x"), ended("2")],
        [accepted("x", "a"), dropped("x"), event("killed"), dropped("x")],
        [accepted("t"), started("1", "t"), sent("1", "a", "b"), ended("1")],
        [sent(None, "a", "b")],
        [{**accepted("x"), "expires": 9}, {**dropped("x"), "clock": 10}],
        [accepted("x", "a"), event("started", run="1", causes=None), ended("1")],
        [{**GOOD[0], "at": 1}, {**GOOD[1], "at": 2}, {**GOOD[3], "at": 3}][::-1],
    ],
)
def test_the_checker_accepts_a_correct_history(events: list[dict[str, Any]]) -> None:
    assert check(events) == []


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([accepted("x", "a")], "b: x was lost: no run, no drop"),
        ([started("1", "x"), ended("1"), accepted("x", "a")], "which was not accepted"),
        ([event("started", run="1", causes=None), ended("1"), accepted("x", "a")], "x was lost"),
        ([*GOOD, accepted("x", "a"), dropped("x")], "x was accepted twice"),
        ([accepted("x", "a"), dropped("x"), dropped("x")], "settled 2 times"),
        ([accepted("x", "a"), dropped("x"), started("1", "x"), ended("1")], "settled 2 times"),
        ([*GOOD, started("2", "x"), ended("2")], "settled 2 times"),
        ([accepted("x", "a"), dropped("x", "")], "without a reason in one line"),
        ([accepted("x", "a"), dropped("x", "a\nb")], "without a reason in one line"),
        ([dropped("x")], "never accepted"),
        ([{**accepted("x"), "expires": 9}, {**dropped("x"), "clock": 9}], "before its time"),
        ([started("1"), ended("1")], "run 1 has no cause"),
        ([accepted("x", "a"), started("1", "x")], "run 1 never ended"),
        ([ended("1")], "ended without being on"),
        (
            [accepted("x"), accepted("y"), started("1", "x"), started("2", "y")],
            "run 2 started while 1 was on",
        ),
        (
            [accepted("x"), accepted("y"), event("taken", causes=("x",))],
            "y was left behind: two runs wait",
        ),
        ([*GOOD[:2], sent("1", "a", "a", "b")], "to a along ('a', 'b'): a loop"),
        ([*GOOD[:2], sent("1", "a", "b")], "along ('b',), which no cause of 1 came"),
        ([*GOOD[:2], sent("1", "c", "a")], "whose path ends elsewhere"),
        ([sent(None, "c", "a", "b")], "which no cause of None came"),
        ([sent("9", "c", "b")], "which no cause of 9 came"),
        ([sent(None, "z", *"acdefghijb")], "with 9 hops"),
    ],
)
def test_the_checker_names_a_violation(events: list[dict[str, Any]], problem: str) -> None:
    found = check(events)
    assert any(problem in line for line in found), found


def test_an_unsettled_history_may_have_active_runs_and_waiting_causes() -> None:
    assert check([accepted("x", "a"), started("1", "x"), accepted("y")], settled=False) == []


def test_a_run_on_one_node_does_not_serve_a_cause_of_another() -> None:
    found = check([*GOOD, event("accepted", node="c", id="x", path=("a", "b"))])
    assert found == ["c: x was lost: no run, no drop"]
