"""Nodes with a wrong release."""

from collections.abc import Mapping, Sequence

from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.web.dashboard.lists.agreement import Agreement

APP = "web/tags/r7"


def wrong_releases(rows: Sequence[NodeRow]) -> Mapping[str, str]:
    agreement = Agreement()
    for row in rows:
        agreement.add(row)
    return agreement.wrong_releases()


def rows(*digests: str, release: str = APP) -> list[NodeRow]:
    return [
        NodeRow(node=f"n{number}", release=release, release_digest=one)
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
    assert (
        wrong_releases([*rows("a"), NodeRow(node="x", release="web/tags/r8", release_digest="b")])
        == {}
    )


def test_a_rollback_differs_from_the_release_of_the_input() -> None:
    back = NodeRow(node="n", release=APP, input_release="web/tags/r8", release_digest="a")
    assert wrong_releases([back, *rows("b")]) == {
        "n": "a rollback is in force; its input names web/tags/r8"
    }
    assert wrong_releases([NodeRow(node="n", release=APP, input_release=APP)]) == {}
