"""When Puppet's parser reads a release: before its name is switched, or at once on request.

Owns: which release is read when, and what happens where Puppet is not installed. Refuses to know:
how the parser is asked and where its answers are kept (`releases.interfaces`).
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from localpuppet.base.errors import LocalpuppetError, PuppetMissingError, StateError
from localpuppet.base.machine.ports import Progress
from localpuppet.node.enc.document import NodeDocument
from localpuppet.node.puppet.installation import Installation
from localpuppet.node.releases.interface import Interface
from localpuppet.node.releases.interfaces import Elsewhere, Interfaces, Parser, check_document
from localpuppet.node.releases.release import Release
from localpuppet.node.releases.staged import Staged
from localpuppet.node.releases.store import Store


class InterfaceReader:
    """Has Puppet's parser read releases.

    Args:
        interfaces: Where answers are kept.
        store: Locked while an answer is kept.
        installed: Returns the installed Puppet, or raises `PuppetMissingError`.
        parser: Returns the parser of an installed Puppet.
        elsewhere: What else may define classes or hold data.
        observe: Returns whoever is shown, under a title, that reading takes long.
    """

    def __init__(
        self,
        interfaces: Interfaces,
        *,
        store: Store,
        installed: Callable[[], Installation],
        parser: Callable[[Installation], Parser],
        elsewhere: Elsewhere,
        observe: Callable[[str], Progress],
    ) -> None:
        self.interfaces = interfaces
        self._store = store
        self._installed = installed
        self._parser = parser
        self._elsewhere = elsewhere
        self._observe = observe

    def read_composed(
        self, staged: Staged, modulepath: Mapping[str, Path], own_code: Mapping[str, Path]
    ) -> bool:
        """Read a release that has no name on this node yet; return whether there was a parser.

        Where Puppet is not installed yet, as where images are made, nothing is read.

        Raises:
            InvalidInputError: Puppet cannot parse the release.
            PuppetMissingError: Puppet is there, and its parser does not work.
        """
        try:
            installation = self._installed()
        except PuppetMissingError:
            return False
        parser = self._parser(installation)
        self.interfaces.read_composed(staged, modulepath, own_code, parser)
        return True

    def read_staged(self, release: Release) -> str:
        """Keep the interface of a staged release; return why that was not done, else nothing.

        Raises:
            InvalidInputError: Puppet cannot parse the release.
            BusyError: Another process changes the store.
            PuppetMissingError: Puppet is there, and its parser does not work.
        """
        try:
            installation = self._installed()
        except PuppetMissingError as error:
            return f"not parsed: {error}"
        lock = self._store.exclusively()
        try:
            interface = self._read(release, installation, keep=True)
        finally:
            lock.release()
        interface.refuse_problems()
        return ""

    def check_now(self, release: Release, document: NodeDocument, *, where: str) -> str:
        """Hold a document against its release, read now; return why that was not done, if so.

        Whoever may read the release may check it: nothing is kept.

        Args:
            release: The release, staged or not.
            document: The node document.
            where: The input, for messages.

        Raises:
            InvalidInputError: The document does not fit, or Puppet cannot parse the release.
            PuppetMissingError: Puppet is there, and its parser does not work.
        """
        try:
            installation = self._installed()
        except (PuppetMissingError, StateError) as error:
            return f"classes and parameters were not checked: {error}"
        interface = self._read(release, installation, keep=False)
        interface.refuse_problems()
        try:
            check_document(document, interface, release, elsewhere=self._elsewhere, extra=())
        except LocalpuppetError as error:
            raise error.at(where) from error
        return ""

    def interface_of(self, release: Release) -> Interface:
        """Return a release's interface: the kept one, or what Puppet's parser reads now.

        Raises:
            InvalidInputError: Puppet cannot parse the release.
            PuppetMissingError: There is no Puppet, or its parser does not work.
        """
        kept = self.interfaces.kept(release)
        return kept or self._read(release, self._installed(), keep=False)

    def _read(self, release: Release, installation: Installation, *, keep: bool) -> Interface:
        progress = self._observe(f"reading {release.app}")
        progress.begin()
        try:
            return self.interfaces.read(release, self._parser(installation), keep=keep)
        finally:
            progress.close()


class ParseBeforeSwitch:
    """Lets a release have its name only when Puppet's parser can read it: for `Staging`.

    Args:
        reader: Reads it.
    """

    def __init__(self, reader: InterfaceReader) -> None:
        self._reader = reader
        self.given = False  # a release that was here already is not asked about

    def __call__(
        self, staged: Staged, modulepath: Mapping[str, Path], own_code: Mapping[str, Path]
    ) -> None:
        """Keep what the parser says; see `InterfaceReader.read_composed` for what it raises."""
        self.given = self._reader.read_composed(staged, modulepath, own_code)
