"""gc: removes releases that no rollback can return to, and the trees that only they needed.

- Kept are the releases that run, that the input or an assignment names, that an operator rolled
  back to, that a rollback can return to, and that were staged recently.
- A tree or link directory is removed only if no kept release, no mutable code and no run needs it:
  after a tag moved, a run may have used other trees than the release has now.
- While a run is being prepared, nothing is removed.
- A name is removed before its target, so that no release is ever incomplete.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine.files import remove, remove_tree
from localpuppet.base.value import Value
from localpuppet.node.releases.branches import BranchRecords
from localpuppet.node.releases.composing import ModuleLinks
from localpuppet.node.releases.git.mirrors import old_mirrors
from localpuppet.node.releases.ledger import Ledger
from localpuppet.node.releases.modules import all_sources
from localpuppet.node.releases.staged_records import StagedRelease
from localpuppet.node.releases.staging import ReleaseStaging


class Removal(Value):
    """The paths that gc removes.

    Attributes:
        branches: Branches that were not fetched for a while.
        mirrors: Unused mirrors of repositories that are not sources.
    """

    releases: tuple[ReleasePath, ...]
    compositions: tuple[str, ...]
    trees: tuple[str, ...]
    remaining: tuple[ReleasePath, ...]
    links: tuple[Path, ...]
    branches: tuple[ReleasePath, ...]
    archives: tuple[Path, ...]
    mirrors: tuple[Path, ...]


class GarbageCollector(Value):
    """Decides what gc removes, and removes it.

    Attributes:
        ledger: What was applied.
        in_use: Returns release and modulepath of each running run.
        forget: Forgets what is known about a composition that was removed.
        urls: The URLs of the site's sources.
        keep_staged: Seconds that an unapplied staged release is kept.
    """

    staging: ReleaseStaging
    ledger: Ledger
    named: Callable[[], Iterable[ReleasePath]]
    good: Callable[[], Iterable[ReleasePath]]
    in_use: Callable[[], Iterable[tuple[ReleasePath, Sequence[Path]]]]
    forget: Callable[[str], None]
    urls: Sequence[str]
    keep_staged: float

    def collect(self, *, now: float, dry_run: bool) -> Removal:
        """Remove staged releases and trees that no run or rollback needs, and return them.

        Args:
            now: Seconds since 1970.

        Raises:
            BusyError: Another process stages, or a run is being prepared.
            InvalidInputError: An input is invalid, so that its release could not be kept.
        """
        held = self.staging.store.locks
        with ExitStack() as locks:
            locks.callback(held.take_for_changes().release)
            if not dry_run:
                locks.callback(held.take_for_removal().release)
            removal = self.plan(self.named(), now=now)
            if not dry_run:
                self.remove(removal)
        return removal

    def plan(self, named: Iterable[ReleasePath], *, now: float) -> Removal:
        """Return what can be removed.

        Args:
            named: Releases that inputs name; they stay.
            now: Seconds since 1970.

        Raises:
            StateError: A record is damaged, so that nothing can be removed safely.
        """
        state = self.staging.store.directory
        module_links, records = ModuleLinks(state), BranchRecords(state)
        running = list(self.in_use())
        given = {path for _, modulepath in running for path in modulepath}
        current = map(self.ledger.current, self.ledger.sources())
        keep = {*named, *(app for app, _ in running), *self._rolled_back(), *self.good()}
        keep.update(app for app in current if app is not None)
        all_staged = self.staging.records.all()
        keep.update(self._staged_ahead(all_staged, since=now - self.keep_staged))
        kept = [staged for staged in all_staged if staged.release in keep]
        since = now - self.keep_staged
        used = {path.parent for path in given}
        links = [path for path in module_links.unused(since=since) if path not in used]
        # Which commit of a branch a run uses that is on is not known: none goes meanwhile.
        busy = not all(app.is_tag for app, _ in running)
        branches = {
            branch: branch.release in keep or busy or at >= since
            for branch, at in records.fetched().items()
        }
        compositions, trees = self.staging.compositions.used(given)
        compositions |= {staged.composition for staged in kept}
        needed = trees | {sha256 for staged in kept for sha256 in staged.digests}
        needed |= module_links.needed(but=links)
        needed |= {branch.tree_sha256 for branch, kept_one in branches.items() if kept_one}
        return Removal(
            releases=tuple(staged.release for staged in all_staged if staged.release not in keep),
            compositions=tuple(sorted(self.staging.compositions.names() - compositions)),
            trees=tuple(sha256 for sha256 in self.staging.store.digests() if sha256 not in needed),
            remaining=tuple(staged.release for staged in kept),
            links=tuple(links),
            branches=tuple(branch.release for branch, kept_one in branches.items() if not kept_one),
            archives=tuple(
                path for source in all_sources() for path in source.old_archives(state, since=since)
            ),
            mirrors=tuple(old_mirrors(state, self.urls, since=since)),
        )

    def _rolled_back(self) -> set[ReleasePath]:
        rollback = self.ledger.rollback()
        return {rollback.release} if rollback else set()

    def _staged_ahead(
        self, all_staged: Iterable[StagedRelease], *, since: float
    ) -> set[ReleasePath]:
        """Return the releases that were staged recently and never applied."""
        return {
            staged.release
            for staged in all_staged
            if staged.release not in self.ledger.order(staged.release.source)
            and self.staging.records.written_at(staged.release) >= since
        }

    def remove(self, removal: Removal) -> None:
        """Remove what `plan` returned. For both, callers hold two locks of the store.

        They are those of `StoreLocks.take_for_changes` and `StoreLocks.take_for_removal`.

        Raises:
            StateError: The disk refused; the remaining releases are complete, and gc can run again.
        """
        gone = {staged.release: staged for staged in self.staging.records.all()}
        kept = [staged for staged in gone.values() if staged.release in removal.remaining]
        for release in removal.releases:
            self.staging.remove(gone[release], kept=kept)
        for app in removal.branches:
            BranchRecords(self.staging.store.directory).remove(app)
        for composition in removal.compositions:
            self.staging.compositions.remove(composition)
            self.forget(composition)
        for path in removal.links:
            remove_tree(path)
        for sha256 in removal.trees:
            self.staging.store.remove(sha256)
        for path in removal.archives:
            remove(path)
        for path in removal.mirrors:
            remove_tree(path)
