"""Outcomes and states as terminal and dashboard show them, and when a node is late."""

import pytest

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.run_kind import Kind, kind_of
from localpuppet.fleet.inventory.timetable import GRACE, due, splay


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ({}, Kind.NONE),
        ({"outcome": "exploded"}, Kind.NONE),
        ({"outcome": "failed", "category": "no_report"}, Kind.COMPILE_FAILED),
        ({"outcome": "failed", "category": "resources_failed"}, Kind.FAILED),
        ({"outcome": "failed"}, Kind.FAILED),
        ({"outcome": "timed_out"}, Kind.TIMED_OUT),
        ({"outcome": "interrupted"}, Kind.INTERRUPTED),
        ({"outcome": "cancelled"}, Kind.CANCELLED),
        ({"outcome": "changed"}, Kind.CHANGED),
        ({"outcome": "changed", "corrective_change": False}, Kind.CHANGED),
        ({"outcome": "changed", "corrective_change": "yes"}, Kind.CHANGED),
        ({"outcome": "changed", "corrective_change": True}, Kind.CORRECTED),
        ({"outcome": "unchanged", "noop": False}, Kind.UNCHANGED),
        ({"outcome": "unchanged", "noop": True, "category": "noop_pending"}, Kind.NOOP_PENDING),
        ({"outcome": "unchanged", "noop": True, "category": ""}, Kind.NOOP_CLEAN),
    ],
)
def test_each_outcome_has_a_kind(last: dict[str, Json], kind: Kind) -> None:
    assert kind_of(last) is kind


def test_a_node_is_due_after_its_interval_and_twice_its_splay() -> None:
    names = [NodeName.parse(f"n{number}.example.com") for number in range(50)]
    for name in names:
        assert due(name, 3600.0) == 3600.0 + max(2 * splay(name, 3600.0), GRACE)
    assert min(due(name, 3600.0) for name in names) >= 3600.0 + GRACE
