"""Provides the release that an input names: staged, verified, parsed by Puppet, resolved."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.releases.release import Release

if TYPE_CHECKING:
    # A release that is on the node already needs none of these.
    from localpuppet.node.releases.packages.staging import PackageStaging
    from localpuppet.node.releases.packages.tools import SystemPackageTools
    from localpuppet.node.releases.reading import InterfaceReader
    from localpuppet.node.releases.staging import Approve


@dataclass(slots=True, eq=False, kw_only=True)
class ReleaseProvider:
    """Provides releases.

    Attributes:
        offered: Whether a source, a package or a pack has a release.
        resolve: Returns a release that is on the node.
        staging: Provides staging, under a title for progress.
        tools: Returns the package tools.
        reader: Reads the interfaces of staged releases.
        mutable: Brings the modules of mutable code; `None` if the site forbids it.
    """

    offered: Callable[[ReleasePath], bool]
    resolve: Callable[[ReleasePath], Release]
    staging: "Callable[[str, Approve], AbstractContextManager[PackageStaging]]"
    tools: "Callable[[], SystemPackageTools]"
    reader: "Callable[[], InterfaceReader]"
    mutable: Callable[[ReleasePath], None] | None

    def ensure_present(self, path: ReleasePath, note: Callable[[str], None]) -> None:
        """Stage a release again if this node had it and lost it.

        Args:
            path: Its name.
            note: Called before a release is staged, with a line for the user.

        Raises:
            LocalpuppetError: The release is missing and cannot be staged.
        """
        try:
            self.resolve(path)
        except InvalidInputError:
            note(f"{path} is incomplete on this node: staging it")
            try:
                self.provide(path)
            except LocalpuppetError as error:
                raise type(error)(
                    f"{path} is incomplete on this node and cannot be staged: {error}",
                    hint=f"when its source can be reached, run 'localpuppet stage {path}'",
                ) from error

    def provide(self, path: ReleasePath, *, package: Path | None = None) -> Release:
        """Return a release, after staging it if any source offers it.

        Args:
            path: Its name.
            package: A package to install first, and to stage the release from.

        Raises:
            LocalpuppetError: The package or release is invalid, or cannot be staged.
        """
        changes = not (path.is_tag or path.is_assigned)
        if package is None and changes and self.mutable is not None:
            self.mutable(path)
        # Where staging could not find it, resolving says best what is wrong.
        if package is None and not (path.is_tag and self.offered(path)):
            return self.resolve(path)
        from localpuppet.node.releases.reading import ParseBeforeSwitch

        reader = self.reader()
        approve = ParseBeforeSwitch(reader)
        if package is not None:
            self.tools().install(package)
        with self.staging(f"staging {path}", approve) as staging:
            if package is not None:
                staging.stage_installed(path)
            else:
                staging.stage(path)
        release = replace(self.resolve(path), repaired=staging.repaired)
        if not approve.given and reader.interfaces.kept(release) is None:
            reader.read_staged(release)
        return release
