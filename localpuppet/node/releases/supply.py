"""What every way of bringing code onto a node needs: where it comes from, and where it goes.

Owns: that these belong together, and who brings what with them. Refuses to know: which release
somebody wants.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localpuppet.node.releases.fetch import Fetcher
from localpuppet.node.releases.release_files import ReleaseFiles
from localpuppet.node.releases.single.fetching import ModuleFetcher
from localpuppet.node.releases.source import Source
from localpuppet.node.releases.store import Store

if TYPE_CHECKING:
    from localpuppet.node.releases.forge.ports import ModuleForge
    from localpuppet.node.releases.git.repository import Repository


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Where code comes from, and where it goes.

    Attributes:
        store: Trees.
        sources: The site's sources by name.
        files: Reads manifests and locks.
        forge: Returns the forge; called when something must come from there.
    """

    store: Store
    sources: Mapping[str, Source]
    files: ReleaseFiles
    forge: "Callable[[], ModuleForge]"

    def tags(self, repository: "Repository") -> Fetcher:
        """Return what brings tags of repositories into the store."""
        return Fetcher(repository=repository, store=self.store)

    def modules(self, repository: "Repository") -> ModuleFetcher:
        """Return what brings single modules that are not tags into the store."""
        return ModuleFetcher(repository=repository, forge=self.forge, store=self.store)
