"""From an input to its node document, without a run: what `enc` and `check` share."""

from localpuppet.enc.classify import node_document
from localpuppet.enc.document import NodeDocument
from localpuppet.enc.input import Source, read_input
from localpuppet.formats.names import NodeName
from localpuppet.releases.release import Release
from localpuppet.wiring.node import Parts


def classify(parts: Parts, source: str, node: str | None) -> tuple[Source, Release, NodeDocument]:
    """Return the checked input, its release and the node document.

    Args:
        parts: The wiring.
        source: Path, `-` or URL of the input.
        node: The node that the site's own ENC command is asked about; `None` for this one.

    Raises:
        LocalpuppetError: Something is refused or cannot be asked.
    """
    read = read_input(source, documents=parts.documents, fetch=parts.fetch())
    release = parts.release(read.input.app)
    command = parts.enc_command()
    answer = None
    if command is not None:
        if node is None:
            installation = parts.installation(ask=True)
            node = installation.settings["certname"] if installation else ""
        answer = command.ask(
            NodeName.parse(node), processes=parts.processes, documents=parts.documents
        )
    return read, release, node_document(read, release, answer=answer)
