"""The options of verbs that take a site: which one, and what of it."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from localpuppet.formats.names import NodeName
from localpuppet.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.orchestrator.plan import Plan

Decorator = Callable[[Any], Any]


def site_options(*, required: bool) -> Decorator:
    """Return the options `--site`, `--instance` and `--nodes`."""
    options = (
        click.option(
            "--site",
            "source",
            required=required,
            metavar="FILE",
            help="The site: a file of ours, or Puppet's environment graph (JSON); "
            "'-' for standard input.",
        ),
        click.option(
            "--instance",
            "instances",
            multiple=True,
            metavar="NAME",
            help="Only this application instance; again for more.",
        ),
        click.option(
            "--nodes",
            multiple=True,
            metavar="NODE,…",
            help="Only these nodes; what others produce is taken as it stands.",
        ),
    )

    def decorate(command: Any) -> Any:  # noqa: ANN401
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def names_in(nodes: Sequence[str]) -> tuple[NodeName, ...]:
    """Return the nodes that `--nodes` names, each once.

    Raises:
        InvalidInputError: A name is not a node's.
    """
    words = [name for text in nodes for name in text.split(",")]
    return tuple(NodeName.parse(name) for name in dict.fromkeys(words))


def read_plan(
    node: NodeWiring, source: str, instances: Sequence[str], nodes: Sequence[str]
) -> "Plan":
    """Return the plan of a site, narrowed by the options.

    Raises:
        InvalidInputError: The site is refused, has no order, or the selection matches no node.
    """
    from localpuppet.orchestrator.plan import Selection, make_plan
    from localpuppet.orchestrator.site_file import place, read_site

    selection = Selection(instances=tuple(dict.fromkeys(instances)), nodes=names_in(nodes))
    return make_plan(read_site(source, node.documents), selection, where=place(source))


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep the collector of cycles away: a plan makes many values, and all of them stay.

    It would look at each again and again, which is half of the time of a large plan.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
