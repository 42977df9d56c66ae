"""Who disagrees with its release."""

from collections.abc import Mapping, Sequence

from localpuppet.web.dashboard.lists.agreement import Agreement
from localpuppet.web.dashboard.row import NodeRow

APP = "web/tags/r7"


def disagreeing(rows: Sequence[NodeRow]) -> Mapping[str, str]:
    agreement = Agreement()
    for row in rows:
        agreement.add(row)
    return agreement.disagreeing()


def rows(*digests: str, release: str = APP) -> list[NodeRow]:
    return [
        NodeRow(node=f"n{number}", release=release, digest=one)
        for number, one in enumerate(digests)
    ]


def test_fewer_nodes_disagree_with_more() -> None:
    assert disagreeing(rows("a", "b", "a", "", "a")) == {"n1": f"its {APP} is b; most nodes have a"}


def test_where_no_bytes_are_those_of_most_all_disagree() -> None:
    assert set(disagreeing(rows("a", "b", "a", "b", "c"))) == {"n0", "n1", "n2", "n3", "n4"}


def test_what_may_change_is_no_reason() -> None:
    assert disagreeing(rows("a", "b", "a", release="web/trunk")) == {}
    assert disagreeing([*rows("a"), NodeRow(node="x", release="web/tags/r8", digest="b")]) == {}


def test_a_rollback_is_not_what_the_input_says() -> None:
    back = NodeRow(node="n", release=APP, wanted="web/tags/r8", digest="a")
    assert disagreeing([back, *rows("b")]) == {
        "n": "a rollback is in force; its input names web/tags/r8"
    }
    assert disagreeing([NodeRow(node="n", release=APP, wanted=APP)]) == {}
