"""Builds what compiles catalogs for commands that show what a release does."""

import secrets
from typing import TYPE_CHECKING

from localpuppet.node.wiring.compile_engine import compile_engine
from localpuppet.node.wiring.compiling import puppet_caller
from localpuppet.node.wiring.inputs import NodeInputs
from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.node.candidates.node_catalogs import NodeCatalogs


def node_catalogs(node: NodeWiring, inputs: NodeInputs, *, asks: bool = False) -> "NodeCatalogs":
    """Return what compiles catalogs with this node's facts, and applies nothing.

    Args:
        node: The parts of the node.
        inputs: Has the instance data, whose service is asked once for all catalogs.
        asks: Whether query functions ask the agent, as in a run.
    """
    from localpuppet.node.candidates.node_catalogs import NodeCatalogs

    engine = compile_engine(node, trusted=True, asks=asks, mark_key=secrets.token_hex(32))
    return NodeCatalogs(puppet=puppet_caller(node, inputs), engine=engine)
