"""Puppetfiles that are programs: the child that runs them, with this node's programs."""

from typing import TYPE_CHECKING

from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.node.releases.puppetfile.entry import Puppetfile


def evaluate_puppetfile(node: NodeWiring, text: bytes) -> "Puppetfile":
    """Return what a Puppetfile says when Ruby has run it.

    Raises:
        InvalidInputError: Ruby refuses it, or it takes too much.
        StateError: A program for the child is missing.
    """
    from localpuppet.node.releases.puppetfile.evaluating import evaluate

    return evaluate(text, path=node.environment["PATH"])
