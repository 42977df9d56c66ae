"""gc: removing releases that nobody will go back to, and the trees that only they needed.

Owns: what is kept. Invariants: what runs, what the input names, what was assigned, what an operator
rolled back to, what a rollback can go to, and what was staged ahead recently are kept; a tree
or directory of links goes only when no kept release, and no code that is used as it is, needs it,
and no run was given it: a tag that moved since gave its release others; nothing goes as long as a
run is prepared, of which no record says yet what it needs. A name goes before what it stands for,
so that nothing is ever half there.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.releases.forge.kept_archives import KeptArchives
from localpuppet.node.releases.git.kept_mirrors import KeptMirrors
from localpuppet.node.releases.interfaces import Interfaces
from localpuppet.node.releases.layout.links import ModuleLinks
from localpuppet.node.releases.ledger import Ledger
from localpuppet.node.releases.mutable.branches import BranchRecords
from localpuppet.node.releases.staged import Staged
from localpuppet.node.releases.staging import Staging


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What gc removes.

    Attributes:
        releases: Names of staged releases.
        compositions: Directories of links, also those that a moved tag left behind.
        trees: Digests.
        kept: Names of staged releases that stay.
        links: Directories of links to modules, for code that is used as it is.
        branches: Branches that nobody has fetched for a while.
        archives: Archives of the Forge that were unpacked a while ago.
        mirrors: Mirrors of repositories that are not sources and brought nothing for a while.
    """

    releases: tuple[ReleasePath, ...]
    compositions: tuple[str, ...]
    trees: tuple[str, ...]
    kept: tuple[ReleasePath, ...]
    links: tuple[Path, ...]
    branches: tuple[ReleasePath, ...]
    archives: tuple[Path, ...]
    mirrors: tuple[Path, ...]


class Garbage:
    """Decides what may go, and removes it.

    Args:
        staging: Releases on this node.
        ledger: What was applied.
        good: Returns the releases that a rollback can go to.
        in_use: Returns release and modulepath of each run that goes on.
        interfaces: What Puppet's parser found in releases.
        mirrors: The mirrors of repositories.
        keep_staged: For how many seconds what was staged stays, though nobody applied it yet.
    """

    def __init__(
        self,
        *,
        staging: Staging,
        ledger: Ledger,
        good: Callable[[], Iterable[ReleasePath]],
        in_use: Callable[[], Iterable[tuple[ReleasePath, Sequence[Path]]]],
        interfaces: Interfaces,
        mirrors: KeptMirrors,
        keep_staged: float,
    ) -> None:
        self._staging = staging
        self._store = staging.store
        self._ledger = ledger
        self._good = good
        self._in_use = in_use
        self._interfaces = interfaces
        self._keep_staged = keep_staged
        self._links = ModuleLinks(staging.store.directory)
        self._branches = BranchRecords(staging.store.directory)
        self._archives = KeptArchives(staging.store.directory)
        self._mirrors = mirrors

    def plan(self, named: Iterable[ReleasePath], *, now: float) -> Removal:
        """Return what may go.

        Args:
            named: Releases that inputs name; they stay.
            now: Seconds since 1970.

        Raises:
            StateError: A record that it needs is damaged: nothing is removed on a guess.
        """
        running = list(self._in_use())
        given = {path for _, modulepath in running for path in modulepath}
        current = map(self._ledger.current, self._ledger.sources())
        keep = {*named, *(app for app, _ in running), *self._rolled_back(), *self._good()}
        keep.update(app for app in current if app is not None)
        staged = self._staging.all()
        keep.update(self._staged_ahead(staged, since=now - self._keep_staged))
        kept = [release for release in staged if release.app in keep]
        since = now - self._keep_staged
        links = [path for path in self._links.unused(since=since) if path not in given]
        # Which commit of a branch a run uses that is on is not known: none goes meanwhile.
        busy = not all(app.is_tag for app, _ in running)
        branches = {
            branch: branch.app in keep or busy or at >= since
            for branch, at in self._branches.fetched().items()
        }
        compositions, trees = self._staging.compositions.used(given)
        compositions |= {release.composition for release in kept}
        needed = trees | {sha256 for release in kept for sha256 in release.digests}
        needed |= self._links.needed(but=links)
        needed |= {branch.tree_sha256 for branch, kept_one in branches.items() if kept_one}
        return Removal(
            releases=tuple(release.app for release in staged if release.app not in keep),
            compositions=tuple(sorted(self._staging.compositions.names() - compositions)),
            trees=tuple(sha256 for sha256 in self._store.digests() if sha256 not in needed),
            kept=tuple(release.app for release in kept),
            links=tuple(links),
            branches=tuple(branch.app for branch, kept_one in branches.items() if not kept_one),
            archives=tuple(self._archives.old(since=since)),
            mirrors=tuple(self._mirrors.old(since=since)),
        )

    def _rolled_back(self) -> set[ReleasePath]:
        rollback = self._ledger.rollback()
        return {rollback.app} if rollback else set()

    def _staged_ahead(self, staged: Iterable[Staged], *, since: float) -> set[ReleasePath]:
        """Return what was staged not long ago, and never applied."""
        return {
            release.app
            for release in staged
            if release.app not in self._ledger.order(release.app.source)
            and self._staging.staged_at(release.app) >= since
        }

    def remove(self, removal: Removal) -> None:
        """Remove what `plan` found. Call both with the staging lock and `Store.unneeded`.

        Raises:
            StateError: The disk refused; what is left is whole, and gc can be run again.
        """
        gone = {release.app: release for release in self._staging.all()}
        kept = [release for release in gone.values() if release.app in removal.kept]
        for app in removal.releases:
            self._staging.remove(gone[app], kept=kept)
        for app in removal.branches:
            self._branches.remove(app)
        for composition in removal.compositions:
            self._staging.compositions.remove(composition)
            self._interfaces.forget(composition)
        for path in removal.links:
            self._links.remove(path)
        for sha256 in removal.trees:
            self._store.remove(sha256)
        for path in removal.archives:
            self._archives.remove(path)
        for path in removal.mirrors:
            self._mirrors.remove(path)
