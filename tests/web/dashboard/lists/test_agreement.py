"""Nodes with a wrong release, and nodes that were rolled back."""

from collections.abc import Mapping, Sequence

from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.web.dashboard.lists.node_standings import Agreement
from tests.fleet.history.records import a_row

APP = "web/tags/r7"


def wrong_releases(rows: Sequence[NodeRow]) -> Mapping[str, str]:
    agreement = Agreement()
    for row in rows:
        agreement.add(row)
    return agreement.wrong_releases()


def rows(*digests: str, release: str = APP) -> list[NodeRow]:
    return [
        a_row(f"n{number}", release=release, release_digest=one)
        for number, one in enumerate(digests)
    ]


def test_the_fewer_nodes_have_a_wrong_release() -> None:
    assert wrong_releases(rows("a", "b", "a", "", "a")) == {
        "n1": f"its {APP} is b; most nodes have a"
    }


def test_without_most_common_bytes_all_nodes_have_a_wrong_release() -> None:
    assert set(wrong_releases(rows("a", "b", "a", "b", "c"))) == {"n0", "n1", "n2", "n3", "n4"}


def test_a_release_that_may_change_is_no_difference() -> None:
    assert wrong_releases(rows("a", "b", "a", release="web/trunk")) == {}
    assert wrong_releases([*rows("a"), a_row("x", release="web/tags/r8", release_digest="b")]) == {}


def test_a_rollback_is_a_decision_and_no_wrong_release() -> None:
    back = a_row(
        "n",
        release=APP,
        input_release="web/tags/r8",
        rolled_back_by="root",
        release_digest="a",
    )
    agreement = Agreement()
    for row in [back, *rows("b"), a_row("m", release=APP, input_release=APP)]:
        agreement.add(row)
    assert agreement.wrong_releases() == {}
    assert agreement.rolled_back() == {
        "n": "rolled back by root to web/tags/r7; its input names web/tags/r8"
    }
    agreement.remove(back)
    assert agreement.rolled_back() == {}


def test_a_rollback_names_who_assigned_the_newer_release() -> None:
    back = a_row("n", release=APP, input_release="web/tags/r8", assigned_by="alice")
    agreement = Agreement()
    agreement.add(back)
    assert agreement.rolled_back() == {"n": f"rolled back to {APP}; alice assigned web/tags/r8"}
