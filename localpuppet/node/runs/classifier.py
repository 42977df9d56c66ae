"""Computes the node document of an input without a run, for `enc` and `check`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.value import Value
from localpuppet.node.enc.document import EncData, NodeDocument
from localpuppet.node.enc.input import InputReader, LoadedInput, node_document
from localpuppet.node.releases.release import Release

if TYPE_CHECKING:
    from localpuppet.base.machine.ports import Processes
    from localpuppet.node.enc.site_command import EncCommand


class Classification(Value):
    """The result of classifying an input."""

    loaded: LoadedInput
    release: Release
    document: NodeDocument


class Classifier(Value):
    """Computes node documents, also with the site's ENC command if it has one."""

    inputs: InputReader
    documents: Documents
    resolve: Callable[[ReleasePath], Release]
    enc_command: "EncCommand | None"
    certname: Callable[[], str]
    processes: "Callable[[], Processes]"

    def classify(self, source: str, node: str | None) -> Classification:
        """Return the checked input, its release and the node document.

        Args:
            node: The node that the site's ENC command is asked about; `None` for this one.
        """
        loaded = self.inputs.read(source)
        try:
            release = self.resolve(loaded.input.app)
        except LocalpuppetError as error:
            raise loaded.placed(error) from error
        answer = self.answer(None if node is None else NodeName.parse(node))
        document = node_document(loaded, release.enc, answer=answer)
        return Classification(loaded=loaded, release=release, document=document)

    def answer(self, node: NodeName | None) -> EncData | None:
        """Return the answer of the site's ENC command for a node; `None` without a command."""
        if self.enc_command is None:
            return None
        name = NodeName.parse(self.certname()) if node is None else node
        return self.enc_command.ask(name, processes=self.processes(), documents=self.documents)
