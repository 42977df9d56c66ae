"""Changes that a release would bring: what nodes report, and what the caller accepts of it."""

from collections.abc import Sequence
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, ReleasePath, SignerName
from localpuppet.fleet.bus.bus_limits import MAX_REPLY_NAME
from localpuppet.fleet.requests import request_client
from localpuppet.fleet.requests.request import Arguments, NodeReply
from localpuppet.fleet.requests.request_client import (
    CatalogComparison,
    NodeAnswer,
    RequestClient,
    by_change,
    compare_on,
)
from localpuppet.node.releases.comparison import CatalogChanges
from tests.doubles.simulated_loop import run_simulated

NODES = [NodeName(f"n{number}.example.com") for number in range(11)]
R2 = ReleasePath("app/tags/r2")
GOOD: dict[str, Any] = {
    "state": "done",
    "added": ["File[/x]"],
    "removed": [],
    "changed": {"File[/y]": ["mode"]},
    "left_out": 3,
}
SILENT = NodeAnswer(reply=None, problem="silent")
FOUND = CatalogChanges(added=("File[/x]",), changed={"File[/y]": ("mode",)}, left_out=3)


def replied(told: Any) -> NodeAnswer:
    ok = isinstance(told, dict)
    reply = NodeReply(
        node=SignerName(NODES[0]),
        caller=SignerName("alice"),
        iat=1,
        exp=2,
        in_reply_to="3f2504e0-4f89-41d3-9a0c-0305e82c3301",
        ok=ok,
        result=told if ok else {},
        error=None if ok else told,
    )
    return NodeAnswer(reply=reply)


class Client(RequestClient):
    """Nodes that answer `working` twice, and then as the test wants."""

    def __init__(self, answers: Sequence[NodeAnswer]) -> None:
        self.answers = dict(zip(NODES, answers, strict=False))
        self.asked: list[NodeName] = []

    async def ask(
        self, node: NodeName, action: str, args: Arguments, *, patience: float
    ) -> NodeAnswer:
        assert (action, args.to_dict()) == ("compile", {"release": R2})
        self.asked.append(node)
        if self.asked.count(node) < 3:
            return replied({"state": "working"})
        return self.answers[node]


def compared(*answers: NodeAnswer) -> list[CatalogComparison]:
    nodes = NODES[: len(answers)]
    found = run_simulated(compare_on(Client(answers), nodes, R2, patience=60))
    assert list(found) == nodes
    return list(found.values())


def test_nodes_are_asked_until_they_have_a_result() -> None:
    answers = compared(replied(GOOD), replied("denied by policy line 1"), SILENT)
    assert answers == [
        CatalogComparison(changes=FOUND),
        CatalogComparison(problem="denied by policy line 1"),
        CatalogComparison(problem="silent"),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"added": None},
        {"removed": "x"},
        {"changed": []},
        {"left_out": -1},
        {"left_out": True},
        {"added": ["File[/x]"] * (request_client.MOST_TOLD + 1)},
    ],
)
def test_an_unknown_answer_is_a_problem_and_not_an_empty_change(change: dict[str, Any]) -> None:
    (found,) = compared(replied(GOOD | change))
    assert found.changes is None
    assert "unknown answer" in found.problem


def test_names_from_nodes_are_escaped_and_shortened() -> None:
    told = GOOD | {"added": ["a\nb\x1b[2J", 3, "x" * 1000], "changed": {"y": "z"}}
    (found,) = compared(replied(told))
    assert found.changes is not None
    assert [len(name) for name in found.changes.added][1:] == [1, MAX_REPLY_NAME]
    assert "\n" not in found.changes.added[0]
    assert found.changes.changed == {"y": ()}


def test_only_so_much_is_kept_of_all() -> None:
    names = [f"File[/{number}]" for number in range(request_client.MOST_TOLD)]
    full = replied({"added": names, "removed": [], "changed": {}, "left_out": 0})
    fitting = request_client.MOST_KEPT // request_client.MOST_TOLD
    *first, last = compared(*[full] * fitting, replied(GOOD))
    assert [one.changes for one in first] == [CatalogChanges(added=tuple(names))] * fitting
    assert last.changes == CatalogChanges(left_out=5)


def test_nodes_with_equal_changes_are_grouped() -> None:
    changed = CatalogComparison(changes=FOUND)
    found = {NODES[0]: changed, NODES[1]: CatalogComparison(problem="x"), NODES[2]: changed}
    assert by_change(found) == [(FOUND, [NODES[0], NODES[2]])]


async def test_only_tags_are_compared() -> None:
    with pytest.raises(InvalidInputError, match="app/trunk is not a tag"):
        await compare_on(Client([]), [], ReleasePath("app/trunk"), patience=1)
