"""The options of `localpuppet rollout run` that select nodes and earlier rollouts."""

import itertools
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.formats.names import NodeName
from localpuppet.node.cli.command import option, options
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.rollout.cli.inventory_site import answer, fact_of, refuse_unlisted, with_roles
from localpuppet.rollout.cli.site_options import SITE, names_in, read_plan, site_options

if TYPE_CHECKING:
    from localpuppet.rollout.execution.selecting import Groups, RolloutSelection

_ORDER = options(
    SITE,
    option(
        "--order",
        "none: all selected nodes are one group; requires --query, --role or --nodes.",
        type=click.Choice(["site", "none"]),
        default="site",
        show_default=True,
    ),
    option("--without NODE,…", "Leave out these nodes (repeatable).", multiple=True),
)
earlier_options = options(
    "Earlier rollout",
    option(
        "--approve DIGEST", "Allow only changes that the rollout with --noop of this digest showed."
    ),
    option(
        "--failed-in parent ID",
        "Run only nodes that did not succeed in rollout ID, with its options.",
    ),
)


def what_options(command: Any) -> Any:  # noqa: ANN401
    """Add the options that select nodes to a command."""
    return site_options(_ORDER(command))


def selected(
    node: NodeWiring, given: dict[str, Any], again: frozenset[NodeName] | None
) -> "RolloutSelection":
    """Return the selection of the options.

    Raises:
        InvalidInputError: The site is rejected, or the selection matches no node.
    """
    from localpuppet.rollout.execution import selecting

    if given["order"] == "none":
        selection = _one_group(node, given, again)
    else:
        selection = selecting.of_plan(read_plan(node, given))
        selection = selection if again is None else selecting.only(selection, again)
    without, nodes = names_in(given["without"]), {*itertools.chain(*selection.groups)}
    if given["source"] is None and not given["nodes"] and again is None:
        refuse_unlisted(node, nodes, without)
    return selecting.only(selection, nodes - {*without}) if without else selection


def places(node: NodeWiring, fact: str | None, groups: "Groups") -> "dict[NodeName, str]":
    """Return the places of nodes from a fact; empty if no fact is named.

    Raises:
        InvalidInputError: A node does not have the fact.
    """
    from localpuppet.rollout.execution.selecting import places_of

    if fact is None:
        return {}
    return places_of(fact_of(node, fact, {name for group in groups for name in group}), fact)


def _one_group(
    node: NodeWiring, given: dict[str, Any], again: frozenset[NodeName] | None
) -> "RolloutSelection":
    from localpuppet.rollout.execution.selecting import one_group

    query, roles, nodes = given["query"], given["roles"], given["nodes"]
    if given["source"] is not None or given["instances"]:
        raise click.UsageError("--order none excludes --site and --instance")
    if query is None and not roles and not nodes and again is None:
        raise click.UsageError("--order none requires --query, --role or --nodes")
    groups = [] if again is None else [again]
    if query is not None:
        groups.append(answer(node, query))
    if roles:
        groups.append(with_roles(node, roles))
    if nodes:
        groups.append(frozenset(names_in(nodes)))
    title = f"query {query}" if query else f"role {', '.join(roles)}" if roles else ""
    names = frozenset.intersection(*groups)
    first = min(names, default="")
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return one_group(names, title=title or f"{first}{others}")
