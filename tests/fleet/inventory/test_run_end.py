"""Outcomes and states as terminal and dashboard show them, and when a node is late."""

from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.inventory.node_row import GRACE, due, splay
from localpuppet.fleet.inventory.run_end import Kind, newest
from localpuppet.node.puppet.fault import FailureCause
from localpuppet.node.runs.reason import Category
from localpuppet.node.runs.run import Outcome, RefusalKind
from tests.fleet.make import an_end

NOW = 1_795_000_000.0


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ({"outcome": Outcome.FAILED, "category": Category.NO_REPORT}, Kind.COMPILE_FAILED),
        ({"outcome": Outcome.FAILED, "category": Category.RESOURCES_FAILED}, Kind.FAILED),
        ({"outcome": Outcome.FAILED}, Kind.FAILED),
        ({"outcome": Outcome.TIMED_OUT}, Kind.TIMED_OUT),
        ({"outcome": Outcome.INTERRUPTED}, Kind.INTERRUPTED),
        ({"outcome": Outcome.CANCELLED}, Kind.CANCELLED),
        ({"outcome": Outcome.CHANGED}, Kind.CHANGED),
        ({"outcome": Outcome.CHANGED, "corrective_change": True}, Kind.CORRECTED),
        ({"noop": False}, Kind.UNCHANGED),
        ({"noop": True, "category": Category.NOOP_PENDING}, Kind.NOOP_PENDING),
        ({"noop": True}, Kind.NOOP_CLEAN),
        ({"outcome": None, "refusal": RefusalKind.ENC}, Kind.REFUSED),
    ],
)
def test_each_end_has_a_kind(last: dict[str, Any], kind: Kind) -> None:
    assert an_end(NOW, **last).kind is kind


@pytest.mark.parametrize(
    "field",
    [
        {"started_at": NOW + 1},
        {"started_at": -1e300},
        {"failing_since": NOW + 1},
        {"failing_since": -1.0},
        {"failed_runs": -5},
        {"run_interval": 0.0},
        {"release": "\u202e"},
        {"reason": "x" * 300},
        {"failure_cause": FailureCause(error="\x1b[2J")},
        {"refusal": RefusalKind.ENC},
    ],
)
def test_an_end_that_cannot_be_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        an_end(NOW, **field)


def test_a_refusal_counts_unless_the_run_takes_place_later() -> None:
    run = an_end(NOW - 60)
    wrong = an_end(NOW, Kind.REFUSED)
    later = [an_end(NOW, Kind.REFUSED, refusal=kind) for kind in ("busy", "on_hold")]
    assert newest([run, *later]) == run
    assert newest([*later, wrong, run]) == wrong
    assert newest(later) is None


def test_a_node_is_due_after_its_interval_and_twice_its_splay() -> None:
    names = [NodeName.parse(f"n{number}.example.com") for number in range(50)]
    for name in names:
        assert due(name, 3600.0) == 3600.0 + max(2 * splay(name, 3600.0), GRACE)
    assert min(due(name, 3600.0) for name in names) >= 3600.0 + GRACE
