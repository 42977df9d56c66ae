"""The options that name a site and select nodes of it."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.wiring.fleet import node_name
from localpuppet.node.app import NodeApp
from localpuppet.node.cli.command import option, options

if TYPE_CHECKING:
    from localpuppet.rollout.plan import Plan

SITE = "Site"  # the title of these options in the help
_SELECTION = options(
    "Nodes",
    option(
        "--nodes NODE,…",
        "Only these nodes; what other nodes produce counts as done (repeatable).",
        multiple=True,
    ),
    option(
        "--role roles ROLE",
        "Only nodes of the inventory with this role (repeatable).",
        multiple=True,
    ),
    option("--query QUERY", "Only nodes that match: see 'localpuppet query --help'."),
    option(
        "--instance instances NAME",
        "Only nodes of this application instance (repeatable).",
        multiple=True,
    ),
)
_SITE = options(
    SITE,
    option(
        "--site source FILE|URL",
        "A site file, Puppet's environment graph (JSON), '-' for standard input, an https "
        "URL of a Puppet server, or srv:ENVIRONMENT.  [default: the inventory]",
    ),
    *(
        click.option(f"--site-{name}", metavar="FILE", type=click.Path(path_type=Path), help=text)
        for name, text in (
            ("cert", "Client certificate for that server.  [default: the node's identity]"),
            ("key", "Its private key."),
            ("ca", "CA of that server.  [default: that of the identity, or https_ca]"),
        )
    ),
)


def site_options(command: Any) -> Any:  # noqa: ANN401
    """Add the options for a site and a selection to a command."""
    return _SELECTION(_SITE(command))


def names_in(nodes: Sequence[str]) -> tuple[NodeName, ...]:
    """Return the nodes that `--nodes` names, each once.

    Raises:
        InvalidInputError: A name is not a node name.
    """
    words = [name for text in nodes for name in text.split(",")]
    return tuple(NodeName.parse(name) for name in dict.fromkeys(words))


def read_plan(node: NodeApp, given: Mapping[str, Any]) -> "Plan":
    """Return the plan of a site or of the inventory, narrowed by the options.

    Raises:
        InvalidInputError: The site is rejected, has no order, or the selection matches no node.
    """
    from localpuppet.rollout.plan import PlanSelection, make_plan
    from localpuppet.rollout.site_file import DEFAULT, OWN, place, read_site, site_url

    source, instances, named = given["source"], given["instances"], names_in(given["nodes"])
    if source is None:
        from localpuppet.rollout.cli.inventory_site import inventory_plan

        return inventory_plan(
            node, instances=instances, named=named, roles=given["roles"], query=given["query"]
        )
    if given["roles"] or given["query"] is not None:
        raise click.UsageError("--role and --query select nodes of the inventory: leave out --site")
    selection = PlanSelection(instances=tuple(dict.fromkeys(instances)), nodes=named)
    certificate, key = given["site_cert"], given["site_key"]
    if (certificate is None) != (key is None):
        raise click.UsageError("--site-cert and --site-key require each other")
    server, default = None, ""
    if source.startswith(OWN):
        source, default = site_url(source, partial(node_name, node)), DEFAULT
    if source.startswith("https://"):
        from localpuppet.rollout.wiring.rollout import site_server

        server = site_server(
            node, ca=given["site_ca"], certificate=certificate, key=key, default=default
        )
    site = read_site(source, node.documents, server)
    return make_plan(site, selection, where=place(source))


@contextmanager
def without_collector() -> Iterator[None]:
    """Suspend Python's cyclic garbage collector: a plan allocates many values that all stay.

    The collector would take half of the time of a large plan.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
