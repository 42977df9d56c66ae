"""Provides the release that an input names: on this node, sound, read by Puppet's parser, resolved.

Owns: whether a release must be staged before it can be used, and that each step is done once.
Refuses to know: who wants the release, and what is run with it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.formats.names import ReleasePath
from localpuppet.releases.release import Release
from localpuppet.releases.source import Source

if TYPE_CHECKING:
    # A release that is on the node already needs none of these.
    from localpuppet.releases.git.repository import Repository
    from localpuppet.releases.packages.ports import PackageTools
    from localpuppet.releases.packages.staging import PackageStaging
    from localpuppet.releases.reading import InterfaceReader
    from localpuppet.releases.staging import Approve


class ReleaseProvider:
    """Provides releases.

    Args:
        sources: The site's sources by name.
        directories: Where release packages and packs are.
        resolve: Returns a release that is on the node.
        repository: Lends git under a title that says what for.
        staging: Returns what stages releases from a repository.
        tools: Returns what installs packages.
        reader: Has Puppet's parser read what was staged.
        mutable: Brings what a release that is not a tag needs; `None` where such releases are
            refused.
    """

    def __init__(
        self,
        *,
        sources: Mapping[str, Source],
        directories: Sequence[Path],
        resolve: Callable[[ReleasePath], Release],
        repository: "Callable[[str], AbstractContextManager[Repository]]",
        staging: "Callable[[Repository, Approve], PackageStaging]",
        tools: "Callable[[], PackageTools]",
        reader: "Callable[[], InterfaceReader]",
        mutable: Callable[[ReleasePath], None] | None,
    ) -> None:
        self._sources = sources
        self._directories = directories
        self.resolve = resolve
        self._repository = repository
        self._staging = staging
        self._tools = tools
        self._reader = reader
        self._mutable = mutable

    def provide(self, path: ReleasePath, *, package: Path | None = None) -> Release:
        """Return a release, staged first when it can come from somewhere.

        Args:
            path: Its name.
            package: A package to install first, and to stage the release from.

        Raises:
            LocalpuppetError: The package is refused, the release cannot be staged, or is refused.
        """
        if package is None and not path.is_tag and self._mutable is not None:
            self._mutable(path)
        if package is None and not (path.is_tag and self._can_be_staged(path)):
            return self.resolve(path)
        from localpuppet.releases.reading import ParseBeforeSwitch

        reader = self._reader()
        approve = ParseBeforeSwitch(reader)
        if package is not None:
            self._tools().install(package)
        with self._repository(f"staging {path}") as repository:
            staging = self._staging(repository, approve)
            if package is not None:
                staging.stage_installed(path)
            else:
                staging.stage(path)
        release = self.resolve(path)
        if not approve.given and reader.interfaces.kept(release) is None:
            reader.read_staged(release)
        return release

    def _can_be_staged(self, path: ReleasePath) -> bool:
        """Whether staging could find it; where it could not, resolving says best what is wrong."""
        from localpuppet.releases.packages.directory import find, find_pack

        if path.source in self._sources or find(self._directories, path) is not None:
            return True
        return find_pack(self._directories, path) is not None
