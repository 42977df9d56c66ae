"""Brings what a lock pins onto the node, for code that is not in the store itself.

Owns: that the trees are in the store and their links beside each other. Refuses to know: whose lock
it is (a work tree's, that of `trunk`). Invariant: what comes is what was pinned, as for a release.
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
    """Brings modules and collections of locks.

    Args:
        supply: Where code comes from, and where it goes.
        repository: Lends git under a title that says what for.
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
        """Have the trees of a lock in the store, and the links to its modules.

        Args:
            lock: The lock.
            trees: What the links lead to: see `ModuleLinks`.
            title: What for, for whoever waits.
            file: The lock's file, for messages.

        Raises:
            InvalidInputError: The forge has no such release.
            IntegrityError: A tag moved, or bytes or a signature are not what they must be.
            UnavailableError: A repository or the forge cannot be had.
            BusyError: Another process changes the store.
        """
        wanted = wanted_of(lock, self._supply.sources, file=str(file))
        held = self._supply.store.exclusively()
        try:
            with self._repository(title) as repository:
                budget = self._supply.store.budget()
                self._supply.tags(repository).bring(wanted, budget=budget)
                self._supply.modules(repository).bring(lock.pins, file=str(file), budget=budget)
            ModuleLinks(self._supply.store.directory).make(trees)
        finally:
            held.release()
