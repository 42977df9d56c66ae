"""Brings the locked modules of mutable code (a work tree, `trunk`, a branch) onto the node.

Trees are compared with their pins, as for a release.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.node.releases.fetch import wanted_of
from localpuppet.node.releases.layout.links import ModuleLinks
from localpuppet.node.releases.lock import Lock
from localpuppet.node.releases.supply import Supply

if TYPE_CHECKING:
    from localpuppet.node.releases.git.repository import Repository


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedModules:
    """Brings locked modules and collections onto the node.

    Attributes:
        supply: Provides code.
        repository: Provides git, under a title for progress.
    """

    supply: Supply
    repository: "Callable[[str], AbstractContextManager[Repository]]"

    def bring(self, lock: Lock, trees: Mapping[str, str], *, title: str, file: Path) -> None:
        """Bring the trees of a lock into the store, and link its modules.

        Args:
            lock: The lock.
            trees: The targets of the links: see `ModuleLinks`.
            title: The purpose, for the progress line.
            file: The lock's file, for messages.

        Raises:
            InvalidInputError: The forge has no such release.
            IntegrityError: A tag moved, or bytes or a signature are wrong.
            UnavailableError: A repository or the forge is unreachable.
            BusyError: Another process changes the store.
        """
        wanted = wanted_of(lock, self.supply.sources, file=str(file))
        with self.supply.store.locks.take_for_changes():
            with self.repository(title) as repository:
                budget = self.supply.store.budget()
                self.supply.tags(repository).bring(wanted, budget=budget)
                self.supply.modules(repository).bring(lock.pins, file=str(file), budget=budget)
            ModuleLinks(self.supply.store.directory).make(trees)
