"""Compares what Puppet would do on this node with another release: it compiles two catalogs.

Nothing is applied, and the input and its assignment stay. Results and errors hold no values.
"""

from collections.abc import Callable
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine.flock import Flock
from localpuppet.base.value import Value
from localpuppet.node.candidates.brief import brief_changes
from localpuppet.node.candidates.node_catalogs import CompilationError, NodeCatalogs
from localpuppet.node.enc.classify import node_document
from localpuppet.node.enc.document import EncData
from localpuppet.node.enc.input import InputReader
from localpuppet.node.preview.difference import difference
from localpuppet.node.releases.comparing import only_in_other
from localpuppet.node.releases.difference import CatalogChanges
from localpuppet.node.releases.provider import ReleaseProvider
from localpuppet.node.releases.reading import InterfaceReader

_WHY = "on the node 'localpuppet release diff BEFORE AFTER --catalog INPUT' says why"


class Candidate(Value):
    """Compares releases on this node.

    Attributes:
        own: The node's input.
        inputs: Reads the input, with the assignment in force.
        releases: Provides releases.
        reader: Reads the interfaces of releases.
        catalogs: Compiles catalogs.
        answer: Returns the answer of the site's ENC; `None` if the site has no ENC.
        keep: Keeps `gc` away from the store.
    """

    own: Path
    inputs: InputReader
    releases: ReleaseProvider
    reader: InterfaceReader
    catalogs: NodeCatalogs
    answer: Callable[[], EncData | None]
    keep: Callable[[], Flock]

    def changes(self, release: ReleasePath) -> CatalogChanges:
        """Return the differences between the catalog of the node's release and that of another.

        Raises:
            LocalpuppetError: The release is not of the node's source or cannot be provided, or one
                of the catalogs does not compile.
        """
        with self.keep():
            read = self.inputs.read(str(self.own))
            app = read.input.app
            if app.source != release.source:
                raise InvalidInputError(
                    f"this node runs {app}, and {release} comes from another source",
                    where="release",
                )
            pair = [self.releases.provide(app), self.releases.provide(release)]
            interfaces = [self.reader.interface_of(item) for item in pair]
            compiled = []
            for side, own, other in zip(pair, interfaces, reversed(interfaces), strict=True):
                document = node_document(read, side.enc, answer=self.answer())
                document, _ = only_in_other(document, own, other)
                try:
                    compiled.append(self.catalogs.compile(side, document))
                except CompilationError as error:
                    raise InvalidInputError(
                        "the catalog does not compile", where=side.name, hint=_WHY
                    ) from error
            return brief_changes(difference(*compiled))
