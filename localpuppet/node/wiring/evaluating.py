"""Evaluates Puppetfiles that are programs, with this node's PATH."""

from typing import TYPE_CHECKING

from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.node.releases.puppetfile.entry import Puppetfile


def evaluate_puppetfile(node: NodeWiring, text: bytes) -> "Puppetfile":
    """Return the entries of a Puppetfile after Ruby has run it.

    Raises:
        InvalidInputError: Ruby fails, or a limit is exceeded.
        StateError: A program for the child is missing.
    """
    from localpuppet.node.releases.puppetfile.evaluating import evaluate

    return evaluate(text, path=node.environment["PATH"])
