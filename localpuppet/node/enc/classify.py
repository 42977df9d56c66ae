"""Computes the node document of a run from its layers, and writes it for the ENC script."""

from pathlib import Path

from localpuppet.base.errors import LocalpuppetError, errors_at
from localpuppet.base.machine.files import write_durably
from localpuppet.node.enc.document import EncData, NodeDocument, ReleaseEnc, classify
from localpuppet.node.enc.input import LoadedInput


def node_document(
    loaded: LoadedInput,
    offered: ReleaseEnc,
    *,
    answer: EncData | None,
) -> NodeDocument:
    """Return the node document: the release's ENC data, its layers, the ENC's answer, the input.

    Each overrides the ones before it.

    Args:
        loaded: The input.
        offered: The `enc.yaml` of the input's release.
        answer: The answer of the site's ENC command, if any.

    Raises:
        InvalidInputError: A layer or a `%{…}` is unknown.
    """
    with errors_at(loaded.name, LocalpuppetError):
        layers = offered.select(loaded.input.layers)
    if answer is not None:
        layers.append(answer)
    with errors_at(f"node document of {loaded.name}", LocalpuppetError):
        return classify([*layers, loaded.input.data])


def write_document(document: NodeDocument, path: Path) -> None:
    """Write the document for the ENC script."""
    write_durably(path, document.to_yaml().encode("utf-8"))
