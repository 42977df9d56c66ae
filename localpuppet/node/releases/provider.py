"""Provides the release that an input names: on this node, sound, read by Puppet's parser, resolved.

Owns: whether a release must be staged before it can be used, and that each step is done once.
Refuses to know: who wants the release, and what is run with it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.releases.release import Release

if TYPE_CHECKING:
    # A release that is on the node already needs none of these.
    from localpuppet.node.releases.packages.ports import PackageTools
    from localpuppet.node.releases.packages.staging import PackageStaging
    from localpuppet.node.releases.reading import InterfaceReader
    from localpuppet.node.releases.staging import Approve


class ReleaseProvider:
    """Provides releases.

    Args:
        offered: Whether staging could find a release: in a source, a package or a pack.
        resolve: Returns a release that is on the node.
        staging: Lends what stages releases, under a title that says what for.
        tools: Returns what installs packages.
        reader: Has Puppet's parser read what was staged.
        mutable: Brings what a release that is not a tag needs; `None` where such releases are
            refused.
    """

    def __init__(
        self,
        *,
        offered: Callable[[ReleasePath], bool],
        resolve: Callable[[ReleasePath], Release],
        staging: "Callable[[str, Approve], AbstractContextManager[PackageStaging]]",
        tools: "Callable[[], PackageTools]",
        reader: "Callable[[], InterfaceReader]",
        mutable: Callable[[ReleasePath], None] | None,
    ) -> None:
        self._offered = offered
        self.resolve = resolve
        self._staging = staging
        self._tools = tools
        self._reader = reader
        self._mutable = mutable

    def ensure_present(self, path: ReleasePath, note: Callable[[str], None]) -> None:
        """Ensure that a release that this node once had is on it; stage it again if it is missing.

        Args:
            path: Its name.
            note: Called before a release is staged, with a line for the user.

        Raises:
            LocalpuppetError: It is missing and cannot be staged now.
        """
        try:
            self.resolve(path)
        except InvalidInputError:
            note(f"{path} is not completely on this node: staging it")
            try:
                self.provide(path)
            except LocalpuppetError as error:
                raise type(error)(
                    f"{path} is not completely on this node and cannot be staged: {error}",
                    hint=f"when its source can be reached, run 'localpuppet stage {path}'",
                ) from error

    def provide(self, path: ReleasePath, *, package: Path | None = None) -> Release:
        """Return a release, staged first when it can come from somewhere.

        Args:
            path: Its name.
            package: A package to install first, and to stage the release from.

        Raises:
            LocalpuppetError: The package is refused, the release cannot be staged, or is refused.
        """
        changes = not (path.is_tag or path.is_assigned)
        if package is None and changes and self._mutable is not None:
            self._mutable(path)
        # Where staging could not find it, resolving says best what is wrong.
        if package is None and not (path.is_tag and self._offered(path)):
            return self.resolve(path)
        from localpuppet.node.releases.reading import ParseBeforeSwitch

        reader = self._reader()
        approve = ParseBeforeSwitch(reader)
        if package is not None:
            self._tools().install(package)
        with self._staging(f"staging {path}", approve) as staging:
            if package is not None:
                staging.stage_installed(path)
            else:
                staging.stage(path)
        release = replace(self.resolve(path), repaired=staging.repaired)
        if not approve.given and reader.interfaces.kept(release) is None:
            reader.read_staged(release)
        return release
