"""The plan of the inventory, and the inventory queries of options."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import shown_names
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render

if TYPE_CHECKING:
    from localpuppet.base.formats.values import Json
    from localpuppet.fleet.inventory.reading import InventoryReader
    from localpuppet.rollout.derived import DerivedPlan
    from localpuppet.rollout.plan import Plan

INVENTORY = "inventory"
NOBODY = (
    "# the inventory has no node yet: a node publishes its entry after a good run, over the bus of"
    " its settings; or name a site with --site"
)
# Seconds for evaluating queries of nodes: an order without all of them could be wrong.
LOOK = 60.0

T = TypeVar("T")


def inventory_plan(
    node: NodeApp,
    *,
    instances: Sequence[str],
    named: Sequence[NodeName],
    roles: Sequence[str],
    query: str | None,
) -> "Plan":
    """Return the plan of the inventory, narrowed by the selection.

    Raises:
        InvalidInputError: The inventory has no order, or the selection matches no node.
        UnavailableError: The inventory could not be queried completely.
    """
    from localpuppet.rollout.plan import PlanSelection, make_plan

    plan = _read(node, _derive)
    for note in plan.notes:
        render.say(f"# {render.user_text(note)}", err=True)
    if not plan.roles:
        render.say(NOBODY, err=True)
    nodes = plan.narrowed(
        named=named, roles=roles, answer=None if query is None else answer(node, query)
    )
    selection = PlanSelection(instances=tuple(dict.fromkeys(instances)), nodes=nodes)
    return make_plan(plan.site, selection, where=INVENTORY)


def _derive(reader: "InventoryReader") -> "DerivedPlan":
    from localpuppet.fleet.roles.links import links_of
    from localpuppet.rollout.derived import derive

    end = time.monotonic() + LOOK
    links = links_of(reader, lambda: time.monotonic() > end)
    if links.unanswered:
        raise UnavailableError(
            f"{links.unanswered} kicks and queries took too long to evaluate: the order could be"
            " wrong",
            where=INVENTORY,
            hint="pass a site file with --site, see 'localpuppet plan --help'",
        )
    return derive(reader.entries(), links)


def with_roles(node: NodeApp, roles: Sequence[str]) -> frozenset[NodeName]:
    """Return the nodes that have one of some roles."""
    wanted = frozenset(roles)
    return _read(
        node,
        lambda reader: frozenset(
            entry.node for entry in reader.entries() if wanted & {*entry.roles}
        ),
    )


def fact_of(node: NodeApp, fact: str, nodes: Collection[NodeName]) -> "dict[NodeName, Json]":
    """Return the value of a fact for some nodes; `None` if a node or its fact is unknown.

    Args:
        node: The parts of this node.
        fact: Its dotted path: `datacenter`, `networking.network`.
        nodes: The nodes.
    """
    from localpuppet.fleet.inventory.entry import at_path

    def ask(reader: "InventoryReader") -> "dict[NodeName, Json]":
        entries = {name: reader.entry(name) for name in nodes}
        return {
            name: None if entry is None else at_path(entry.facts, fact)
            for name, entry in entries.items()
        }

    return _read(node, ask)


def refuse_unlisted(
    node: NodeApp, selected: Collection[NodeName], without: Collection[NodeName]
) -> None:
    """Refuse a rollout that nodes could miss because they have no entry in the inventory.

    Raises:
        InvalidInputError: Such nodes are online, and are neither selected nor left out.
    """
    from localpuppet.fleet.wiring.fleet import run
    from localpuppet.fleet.wiring.inventory import InventoryWiring

    unlisted = run(InventoryWiring(node).unlisted())
    missing = sorted(set(unlisted.names) - set(selected) - set(without))
    if missing:
        raise InvalidInputError(
            f"the rollout would miss online nodes without an entry: {shown_names(missing)}",
            where=INVENTORY,
            hint="an entry follows a good run; name nodes with --nodes, or leave these out with"
            " --without",
        )


def answer(node: NodeApp, query: str) -> frozenset[NodeName]:
    """Return the nodes that match a query.

    Raises:
        InvalidInputError: The query is malformed.
    """
    from localpuppet.fleet.inventory.query.functions import FunctionCall

    question = FunctionCall.of("query", [query])
    return _read(node, lambda reader: frozenset(map(NodeName, question.answer(reader).names)))


def _read(node: NodeApp, question: "Callable[[InventoryReader], T]") -> "T":
    from localpuppet.fleet.wiring.fleet import run
    from localpuppet.fleet.wiring.inventory import InventoryWiring

    inventory = InventoryWiring(node)

    async def ask() -> T:
        async with inventory.reader(render.QuietObserver().note) as view:
            return inventory.ask(view, question).answer

    return run(ask())
