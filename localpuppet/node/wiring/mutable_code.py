"""Builds what prepares mutable code: branches, the directory `trunk`, work trees."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.releases.git.access import rewrite_url
from localpuppet.node.wiring.code_sources import CodeSources
from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.base.formats.names import ReleasePath
    from localpuppet.node.releases.branches import BranchStaging, LockedModules, TrunkStaging
    from localpuppet.node.releases.manifest import Lock
    from localpuppet.node.releases.release import Release


class MutableCode:
    """Branches, `trunk` and work trees of a node.

    Args:
        node: The parts of the node.
        sources: The places that their modules come from.
    """

    def __init__(self, node: NodeWiring, sources: CodeSources) -> None:
        self._node = node
        self._sources = sources

    def is_branch(self, path: "ReleasePath") -> bool:
        """Return whether a release is a branch of a source, and not a directory of that name.

        Raises:
            InvalidInputError: The release is a branch, and the site allows only tags.
        """
        settings = self._node.settings
        declared = path.source in settings.sources
        is_branch = path.is_branch and (declared or not (settings.modules / path).is_dir())
        if is_branch and settings.immutable_only:
            raise InvalidInputError(
                f"{path} can change, and 'immutable_only' is set", where="app", hint="name a tag"
            )
        return is_branch

    def stage(self, path: "ReleasePath") -> None:
        """Stage the current commit of a branch, or the modules of trunk.

        Raises:
            LocalpuppetError: The code is invalid, or cannot be fetched.
        """
        if self.is_branch(path):
            self.branch_staging().stage_or_stay(path, self._node.observe("").note)
        else:
            self.trunk_staging().stage(path)

    def branch_staging(self) -> "BranchStaging":
        """Return the staging of branches."""
        from localpuppet.node.releases.branches import BranchStaging

        return BranchStaging(
            modules=self._node.settings.modules,
            supply=self._sources.supply,
            locked=self._locked_modules(),
            repository=self._sources.repository,
        )

    def trunk_staging(self) -> "TrunkStaging":
        """Return the staging of `trunk`'s modules."""
        from localpuppet.node.releases.branches import TrunkStaging

        modules = self._node.settings.modules
        return TrunkStaging(modules=modules, files=self._sources.files, locked=self._locked_modules)

    def work_tree(
        self,
        directory: Path,
        name: str | None = None,
        *,
        work_trees: bool = True,
        warn: Callable[[str], None] | None = None,
        base: "Lock | None" = None,
    ) -> "Release":
        """Return the code of a work tree, with its modules; see `WorkTrees.release`.

        Args:
            directory: The top of the work tree.
            name: The name of the release; by default that of the directory.
            work_trees: Whether its lock may name work trees of modules on this machine.
            warn: Takes the warnings; by default they are notes.
            base: The lock of the base, if the code is not trusted: see `UntrustedModules`.

        Raises:
            LocalpuppetError: The work tree is invalid, or a module cannot be fetched.
        """
        from localpuppet.node.releases.branches import WorkTrees

        trees = WorkTrees(
            state=self._node.settings.state,
            files=self._sources.files,
            modules=self._locked_modules() if base is None else self._untrusted_modules(base),
            ignored=self._sources.ignored,
            warn=warn or (lambda text: self._node.observe("").note(f"warning: {text}")),
        )
        return trees.release(directory, name, work_trees=work_trees)

    def _locked_modules(self) -> "LockedModules":
        from localpuppet.node.releases.branches import LockedModules

        return LockedModules(supply=self._sources.supply, repository=self._sources.repository)

    def _untrusted_modules(self, base: "Lock") -> "LockedModules":
        from localpuppet.node.releases.branches import CodeSupply, UntrustedModules
        from localpuppet.node.releases.manifest import ForgePin
        from localpuppet.node.wiring.code_sources import PublicSources

        settings, own = self._node.settings, self._sources
        public = PublicSources(self._node)
        supply = replace(own.supply, proves=True)
        return UntrustedModules(
            supply=own.supply,
            repository=own.repository,
            base=frozenset(base.pins.values()),
            named=frozenset(source.url for source in settings.sources.values()),
            known=CodeSupply(supply=supply, repository=own.repository),
            public=CodeSupply(
                supply=replace(supply, forge=public.forge), repository=public.repository
            ),
            address=lambda pin: (
                settings.forge.url
                if isinstance(pin, ForgePin)
                else rewrite_url(pin.url, settings.rewrite)
            ),
            hosts=settings.preview_hosts,
        )
