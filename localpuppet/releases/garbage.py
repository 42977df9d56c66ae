"""gc: removing releases that nobody will go back to, and the trees that only they needed.

Owns: what is kept. Invariants: what runs, what the input names, what an operator rolled back to,
and the newest two releases of each source are kept; a tree goes only when no kept release needs it.
A name goes before what it stands for, so that nothing is ever half there.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from localpuppet.formats.names import ReleasePath
from localpuppet.releases.interfaces import Interfaces
from localpuppet.releases.ledger import Ledger
from localpuppet.releases.staging import Staging
from localpuppet.releases.store import Store

KEPT_OF_A_SOURCE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What gc removes.

    Attributes:
        releases: Names of staged releases.
        trees: Digests.
        kept: Names of staged releases that stay.
    """

    releases: tuple[ReleasePath, ...]
    trees: tuple[str, ...]
    kept: tuple[ReleasePath, ...]


class Garbage:
    """Decides what may go, and removes it.

    Args:
        staging: Releases on this node.
        store: Trees.
        ledger: What was applied.
        in_use: Returns the releases of the runs that go on.
        interfaces: What Puppet's parser found in releases.
    """

    def __init__(
        self,
        *,
        staging: Staging,
        store: Store,
        ledger: Ledger,
        in_use: Callable[[], set[ReleasePath]],
        interfaces: Interfaces,
    ) -> None:
        self._staging = staging
        self._store = store
        self._ledger = ledger
        self._in_use = in_use
        self._interfaces = interfaces

    def plan(self, named: Iterable[ReleasePath]) -> Removal:
        """Return what may go.

        Args:
            named: Releases that inputs name; they stay.

        Raises:
            StateError: A record that it needs is damaged: nothing is removed on a guess.
        """
        keep = {*named, *self._used()}
        for source in self._ledger.sources():
            keep.update(self._ledger.order(source)[-KEPT_OF_A_SOURCE:])
            current = self._ledger.current(source)
            keep.update([current] if current else [])
        staged = self._staging.all()
        kept = [release for release in staged if release.app in keep]
        needed = {sha256 for release in kept for sha256 in release.digests}
        return Removal(
            releases=tuple(release.app for release in staged if release.app not in keep),
            trees=tuple(sha256 for sha256 in self._store.digests() if sha256 not in needed),
            kept=tuple(release.app for release in kept),
        )

    def _used(self) -> set[ReleasePath]:
        used = self._in_use()
        rollback = self._ledger.rollback()
        return used | ({rollback.app} if rollback else set())

    def remove(self, removal: Removal) -> None:
        """Remove what `plan` found. Call it with the staging lock.

        Raises:
            StateError: The disk refused; what is left is whole, and gc can be run again.
        """
        gone = {release.app: release for release in self._staging.all()}
        kept = [release for release in gone.values() if release.app in removal.kept]
        for app in removal.releases:
            self._staging.remove(gone[app], kept=kept)
            if gone[app].composition not in {release.composition for release in kept}:
                self._interfaces.forget(gone[app].composition)
        for sha256 in removal.trees:
            self._store.remove(sha256)
