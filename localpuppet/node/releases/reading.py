"""Has Puppet's parser read a release: before its name is switched, or at once on request."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from localpuppet.base.errors import LocalpuppetError, PuppetMissingError, StateError, errors_at
from localpuppet.base.machine.ports import Progress
from localpuppet.node.enc.document import NodeDocument
from localpuppet.node.puppet.installation import Installation
from localpuppet.node.releases.interface import Interface
from localpuppet.node.releases.interfaces import Elsewhere, Interfaces, Parser, check_document
from localpuppet.node.releases.release import Release
from localpuppet.node.releases.staged import StagedRelease
from localpuppet.node.releases.store import Store


@dataclass(frozen=True, slots=True)
class InterfaceReader:
    """Reads the interfaces of releases with Puppet's parser.

    Attributes:
        interfaces: Keeps interfaces.
        store: Locked while an interface is written.
        installed: Returns the installed Puppet, or raises `PuppetMissingError`.
        parser: Returns the parser of an installed Puppet.
        elsewhere: What else may define classes or hold data.
        observe: Returns a progress display with a title.
    """

    interfaces: Interfaces
    _: KW_ONLY
    store: Store
    installed: Callable[[], Installation]
    parser: Callable[[Installation], Parser]
    elsewhere: Elsewhere
    observe: Callable[[str], Progress]

    def read_composed(
        self, staged: StagedRelease, modulepath: Mapping[str, Path], own_code: Mapping[str, Path]
    ) -> bool:
        """Read a release that is not yet named on this node; return whether a parser exists.

        If Puppet is not installed yet (for example while building an image), nothing is read.

        Raises:
            InvalidInputError: Puppet cannot parse the release.
            PuppetMissingError: Puppet is installed, and its parser does not work.
        """
        try:
            installation = self.installed()
        except PuppetMissingError:
            return False
        parser = self.parser(installation)
        self.interfaces.read_composed(staged, modulepath, own_code, parser)
        return True

    def read_staged(self, release: Release) -> str:
        """Keep the interface of a staged release; return the reason if that was not done.

        Raises:
            InvalidInputError: Puppet cannot parse the release.
            BusyError: Another process holds the store's lock.
            PuppetMissingError: Puppet is installed, and its parser does not work.
        """
        try:
            installation = self.installed()
        except PuppetMissingError as error:
            return f"not parsed: {error}"
        with self.store.locks.take_for_changes():
            interface = self._read(release, installation, keep=True)
        interface.refuse_problems()
        return ""

    def check_now(self, release: Release, document: NodeDocument, *, where: str) -> str:
        """Check a document against its release, read now; return the reason if that was not done.

        Nothing is kept, so read access to the release is enough.

        Args:
            release: The release, staged or not.
            document: The node document.
            where: The input, for messages.

        Raises:
            InvalidInputError: The document does not fit, or Puppet cannot parse the release.
            PuppetMissingError: Puppet is installed, and its parser does not work.
        """
        try:
            installation = self.installed()
        except (PuppetMissingError, StateError) as error:
            return f"classes and parameters were not checked: {error}"
        interface = self._read(release, installation, keep=False)
        interface.refuse_problems()
        with errors_at(where, LocalpuppetError):
            check_document(document, interface, release, elsewhere=self.elsewhere, extra=())
        return ""

    def interface_of(self, release: Release) -> Interface:
        """Return a release's interface: the kept one, or one that Puppet's parser reads now.

        Raises:
            InvalidInputError: Puppet cannot parse the release.
            PuppetMissingError: Puppet is missing, or its parser does not work.
        """
        kept = self.interfaces.kept(release)
        return kept or self._read(release, self.installed(), keep=False)

    def _read(self, release: Release, installation: Installation, *, keep: bool) -> Interface:
        progress = self.observe(f"reading {release.name}")
        progress.begin()
        try:
            return self.interfaces.read(release, self.parser(installation), keep=keep)
        finally:
            progress.close()


class ParseBeforeSwitch:
    """Approves a release for `ReleaseStaging` if Puppet's parser can read it.

    Args:
        reader: Reads the release.
    """

    def __init__(self, reader: InterfaceReader) -> None:
        self._reader = reader
        self.given = False  # a release that was here already is not asked about

    def __call__(
        self, staged: StagedRelease, modulepath: Mapping[str, Path], own_code: Mapping[str, Path]
    ) -> None:
        """Keep the interface; see `InterfaceReader.read_composed` for errors."""
        self.given = self._reader.read_composed(staged, modulepath, own_code)
