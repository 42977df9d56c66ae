"""From an input to its node document, without a run: what `enc` and `check` share.

Owns: which node the site's own ENC command is asked about. Refuses to know: what becomes of the
document.
"""

from collections.abc import Callable
from dataclasses import dataclass

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.machine.ports import Processes
from localpuppet.node.enc.classify import node_document
from localpuppet.node.enc.command import EncCommand
from localpuppet.node.enc.document import EncData, NodeDocument
from localpuppet.node.enc.input import InputReader, LoadedInput
from localpuppet.node.releases.release import Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Classified:
    """What an input comes to.

    Attributes:
        loaded: The checked input.
        release: The release that it names.
        document: The node document.
    """

    loaded: LoadedInput
    release: Release
    document: NodeDocument


class Classifier:
    """Computes node documents.

    Args:
        inputs: Reads inputs.
        documents: Reads the answer of the site's own ENC command.
        resolve: Returns a release that is on the node.
        enc_command: The site's own ENC command, if it has one.
        certname: Returns the name of this node for that command.
        processes: Starts that command.
    """

    def __init__(
        self,
        *,
        inputs: InputReader,
        documents: Documents,
        resolve: Callable[[ReleasePath], Release],
        enc_command: EncCommand | None,
        certname: Callable[[], str],
        processes: Processes,
    ) -> None:
        self._inputs = inputs
        self._documents = documents
        self._resolve = resolve
        self._enc_command = enc_command
        self._certname = certname
        self._processes = processes

    def classify(self, source: str, node: str | None) -> Classified:
        """Return the checked input, its release and the node document.

        Args:
            source: Path, `-`, URL of the input, or `userdata:`.
            node: The node that the site's own ENC command is asked about; `None` for this one.

        Raises:
            LocalpuppetError: Something is refused or cannot be asked.
        """
        loaded = self._inputs.read(source)
        try:
            release = self._resolve(loaded.input.app)
        except LocalpuppetError as error:
            raise loaded.placed(error) from error
        answer = self.answer(None if node is None else NodeName.parse(node))
        document = node_document(loaded, release.enc, answer=answer)
        return Classified(loaded=loaded, release=release, document=document)

    def answer(self, node: NodeName | None) -> EncData | None:
        """Return what the site's own ENC command says of a node; `None` where there is none.

        Args:
            node: The node; `None` for this one.

        Raises:
            EncError: The command failed.
        """
        if self._enc_command is None:
            return None
        name = NodeName.parse(self._certname()) if node is None else node
        return self._enc_command.ask(name, processes=self._processes, documents=self._documents)
