"""What every way of bringing code onto a node needs: sources, the Forge and the store."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localpuppet.node.releases.fetch import Fetcher
from localpuppet.node.releases.release_files import ReleaseFiles
from localpuppet.node.releases.single.fetching import ModuleFetcher
from localpuppet.node.releases.source import ReleaseSource
from localpuppet.node.releases.store import Store

if TYPE_CHECKING:
    from localpuppet.node.releases.forge.ports import ModuleForge
    from localpuppet.node.releases.git.repository import Repository


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Provides code from sources and the Forge, and stores it.

    Attributes:
        store: The trees.
        sources: The site's sources by name.
        files: Reads manifests and locks.
        forge: Returns the Forge; called only if it is needed.
        proves: Whether each tree is written again, even if the store has it: see `Fetcher`.
    """

    store: Store
    sources: Mapping[str, ReleaseSource]
    files: ReleaseFiles
    forge: "Callable[[], ModuleForge]"
    proves: bool = False

    def tags(self, repository: "Repository") -> Fetcher:
        """Return the fetcher of tags."""
        return Fetcher(repository=repository, store=self.store, proves=self.proves)

    def modules(self, repository: "Repository") -> ModuleFetcher:
        """Return the fetcher of single modules that are not tags."""
        return ModuleFetcher(
            repository=repository, forge=self.forge, store=self.store, proves=self.proves
        )
