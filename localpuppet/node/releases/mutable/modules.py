"""Brings the locked modules of mutable code (a work tree, `trunk`, a branch) onto the node.

Trees are compared with their pins, as for a release.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.node.releases.fetch import wanted_of
from localpuppet.node.releases.layout.links import ModuleLinks
from localpuppet.node.releases.lock import Lock
from localpuppet.node.releases.supply import Supply

if TYPE_CHECKING:
    from localpuppet.node.releases.git.repository import Repository


class LockedModules:
    """Brings locked modules and collections onto the node.

    Args:
        supply: Provides code.
        repository: Provides git, under a title for progress.
    """

    def __init__(
        self,
        *,
        supply: Supply,
        repository: "Callable[[str], AbstractContextManager[Repository]]",
    ) -> None:
        self._supply = supply
        self._repository = repository

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
        wanted = wanted_of(lock, self._supply.sources, file=str(file))
        held = self._supply.store.locks.take_for_changes()
        try:
            with self._repository(title) as repository:
                budget = self._supply.store.budget()
                self._supply.tags(repository).bring(wanted, budget=budget)
                self._supply.modules(repository).bring(lock.pins, file=str(file), budget=budget)
            ModuleLinks(self._supply.store.directory).make(trees)
        finally:
            held.release()
