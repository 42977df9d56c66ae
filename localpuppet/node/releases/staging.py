"""Stages a release: brings its code onto the node and verifies it; `gc` removes old ones.

    fetch -> judge the tag, lock and signature -> write into the store -> compose -> link

- A link `modules/foo/tags/r2` is switched only when everything behind it is complete and durable.
- A pin never changes: a tag that differs from its pin is an alarm.
- Kept are the releases that run, that the input or an assignment names, that an operator rolled
  back to, that a rollback can return to, and that were staged recently.
- A tree or link directory is removed only if no kept release, no mutable code and no run needs it:
  after a tag moved, a run may have used other trees than the release has now.
- While a run is being prepared, nothing is removed.
- A name is removed before its target, so that no release is ever incomplete.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import IntegrityError, InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine import files
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.node.releases.branches import BranchRecords
from localpuppet.node.releases.composing import Compositions, ModuleLinks
from localpuppet.node.releases.fetch import Supply, WantedTag, wanted_of
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.git.mirrors import old_mirrors
from localpuppet.node.releases.manifest import LOCK, MANIFEST, Lock
from localpuppet.node.releases.modules import all_sources
from localpuppet.node.releases.release_records import (
    TAGS_FILE,
    UNVERIFIED,
    VERIFIED_FILE,
    Ledger,
    StagedRecords,
    StagedRelease,
    TagMemory,
    Verifications,
    composition,
)
from localpuppet.node.releases.source import refuse_stale, source_of, tag_of

if TYPE_CHECKING:
    from localpuppet.node.releases.git.mirrors import Git


Approve = Callable[[StagedRelease, Mapping[str, Path], Mapping[str, Path]], None]


def compare_first(compare: Callable[[StagedRelease], None], approve: Approve | None) -> Approve:
    """Return an approval that first compares a release with those of other nodes."""

    def approve_compared(staged: StagedRelease, *places: Mapping[str, Path]) -> None:
        compare(staged)
        if approve is not None:
            approve(staged, *places)

    return approve_compared


class ReleaseStaging:
    """The releases on this node.

    `approve` is called before a release gets its name, with its record, its modulepath and its code
    outside of modules (final names → current paths). It raises to reject.
    """

    def __init__(
        self,
        *,
        modules: Path,
        supply: Supply,
        repository: "Git",
        approve: Approve | None,
        clock: Clock,
    ) -> None:
        state = supply.store.directory
        self._approve = approve
        self._clock = clock
        self._fetch_modules = supply.modules(repository)
        self._releases = state / "releases"
        self.compositions = Compositions(state / "releases", supply.store)
        self.records = StagedRecords(state)
        self._state = state
        self._memory = TagMemory(state)
        self._modules = modules
        self.store = supply.store
        self._repository = repository
        self._fetcher = supply.tags(repository)
        self._sources = supply.sources
        self._files = supply.files
        self.repaired = ""

    def remembered(self, app: ReleasePath, known: StagedRelease | None) -> Pin | None:
        """Return the pin of a release at its staging, even if `gc` removed it since."""
        return self._memory.pin(app) if known is None else known.pin

    def problems(self, staged: StagedRelease, *, full: bool) -> list[str]:
        """Return the problems of a staged release; `full` as in `Store.problem`."""
        problems = self._find_damage(staged, full=full)
        names = [Path(name) for name in self._named_links(staged)]
        # Staging cannot repair who may write to a directory that existed before.
        for directory in sorted({parent for name in names for parent in name.parents}):
            try:
                files.refuse_foreign(self._modules / directory)
            except InvalidInputError as error:
                problems.append(str(error))
        return problems

    def verify(
        self, releases: Iterable[StagedRelease], *, full: bool
    ) -> dict[ReleasePath, list[str]]:
        """Return the problems of each staged release; see `problems`.

        Releases with problems are looked at again while no process changes the store: what gc
        removes meanwhile, or what is staged again, has none, and removed releases are left out.
        """
        found = [(one.release, self.problems(one, full=full)) for one in releases]
        if not any(problems for _, problems in found):
            return dict(found)
        with self.store.locks.take_for_changes():
            now = [(self.records.of(release), problems) for release, problems in found]
            return {
                staged.release: self.problems(staged, full=full) if problems else []
                for staged, problems in now
                if staged is not None
            }

    def _find_damage(self, staged: StagedRelease, *, full: bool) -> list[str]:
        """Return the damage that staging the release again would repair."""
        unverified = Verifications(self._state).unverified(staged, self._sources)
        problems = [f"{unverified}: {UNVERIFIED}"] if unverified else []
        for name, sha256 in staged.trees.items():
            if problem := self.store.problem(sha256, full=full):
                problems.append(f"{name} {problem}")
        links = composition(self.compositions.links(staged))
        if links != staged.composition or not self.compositions.whole(staged):
            problems.append(f"{staged.release}: its link directory was changed")
        names = self._named_links(staged)
        paths = {name: self._modules / name for name in names}
        now = {name: path.readlink() for name, path in paths.items() if path.is_symlink()}
        wrong = [name for name, target in names.items() if now.get(name) != target]
        # A run does not go through the names of collections: one may be another release's.
        others = self.records.all() if {*wrong} - {staged.release} else []
        theirs = {item for other in others for item in self._named_links(other).items()}
        problems += [
            f"{paths[name]} does not point into the store"
            for name in wrong
            if name == staged.release or name not in now or (name, now[name]) not in theirs
        ]
        return problems

    def usable(self, staged: StagedRelease) -> bool:
        """Return whether a release is complete and undamaged, with all required tags verified.

        Damage is noted in `repaired`, for the caller that stages the release again.
        """
        broken = self._find_damage(staged, full=False)
        changed = [text for text in broken if not text.endswith(UNVERIFIED)]
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        self.repaired = changed[0] + more if changed else ""
        return not broken

    def stage(
        self,
        app: ReleasePath,
        *,
        refresh: bool = False,
        accept_moved: bool = False,
        fetch: Callable[[StagedRelease | None], StagedRelease] | None = None,
    ) -> StagedRelease:
        """Bring a release of a declared source onto the node, verify it, and link its name.

        With `refresh` the repository is asked even about a staged release; `fetch` brings a release
        from elsewhere, given its current record. After an error no link was switched.

        Raises:
            IntegrityError: A tag moved, a signature or digest is wrong.
            UnavailableError: A repository is unreachable and a tree is missing.
        """

        def obtain(known: StagedRelease | None) -> StagedRelease:
            if known and not (refresh or accept_moved) and self.usable(known):
                return known
            if fetch is not None:
                return fetch(known)
            return self._fetch(app, known, refresh=refresh, accept_moved=accept_moved)

        return self.switch(app, obtain, accept_moved=accept_moved)

    def switch(
        self,
        app: ReleasePath,
        obtain: Callable[[StagedRelease | None], StagedRelease],
        *,
        accept_moved: bool = False,
    ) -> StagedRelease:
        """Link the name of a release, under the staging lock.

        Args:
            obtain: Called with the current record; brings the trees into the store and returns the
                new record, or the current one if it is complete.
            accept_moved: Switch the name of a collection that another release pins differently.
        """
        tag_of(app)  # rejects what is no tag
        with self.store.locks.take_for_changes():
            self._sweep(app)
            known = self.records.of(app)
            staged = obtain(known)
            if staged is not known:
                if not accept_moved:
                    self._refuse_other_pins(staged)
                self._link(staged)
            self._memory.note_pin(app, staged.pin)
            return staged

    def remove(self, staged: StagedRelease, *, kept: Sequence[StagedRelease]) -> None:
        """Remove a release's record, and its names except those of `kept` releases.

        Its link directory stays for running runs: see `GarbageCollector`.
        """
        needed = {path for release in kept for path in self._named_links(release)}
        for path in reversed(self._named_links(staged)):
            if path not in needed and (self._modules / path).is_symlink():
                files.remove(self._modules / path)
        self._memory.note_pin(staged.release, staged.pin)
        self.records.remove(staged.release)

    def _fetch(
        self, app: ReleasePath, known: StagedRelease | None, *, refresh: bool, accept_moved: bool
    ) -> StagedRelease:
        source = source_of(app, self._sources)
        own = WantedTag(
            url=source.url,
            tag=tag_of(app),
            where=app,
            source=source,
            pinned=None if accept_moved else self.remembered(app, known),
        )
        tag_object = self._fetcher.judge(own, refresh=known is None or refresh or accept_moved)
        if known is None or known.pin.tag_object != tag_object.id:
            # What is here already may be repaired, however old it is.
            refuse_stale(source, tag_object, now=self._clock.now().timestamp(), where=app)
        self._memory.note_time(tag_object.id, tag_object.tagged_at)
        if known is not None and known.pin.commit == tag_object.commit:
            own = replace(own, tree_sha256=known.pin.tree_sha256)
        own_files = self._repository.files(source.url, tag_object.commit, [MANIFEST, LOCK])
        lock = self._files.locked(app, own_files.get)
        key = f"{app} itself"  # no pin's key has a space
        file = f"{app}/{LOCK}"
        wanted = {key: own, **wanted_of(lock, self._sources, file=file)}
        budget = self.store.budget()
        pins = self._fetcher.bring(wanted, judged={key: tag_object}, budget=budget)
        self._fetch_modules.bring(lock.pins, file=file, budget=budget)
        return self.describe(app, pins[key], lock)

    def describe(self, app: ReleasePath, pin: Pin, lock: Lock) -> StagedRelease:
        """Return the record of a release whose trees are in the store."""
        file = self.store.path(pin.tree_sha256) / MANIFEST
        manifest = self._files.parse_manifest(
            file.read_bytes() if file.is_file() else b"", MANIFEST
        )
        draft = StagedRelease(
            release=app,
            pin=pin,
            composition="",
            modules={name: pin.tree_sha256 for name, pin in lock.modules.items()},
            sources={name: pin.tree_sha256 for name, pin in lock.sources.items()},
            moduledir=manifest.moduledir,
        )
        return replace(draft, composition=composition(self.compositions.links(draft)))

    def _named_links(self, staged: StagedRelease) -> dict[str, Path]:
        """Return the links below `modules/`: name → target; the app's own name comes last."""
        links = {name: self.store.path(sha256) for name, sha256 in staged.sources.items()}
        links[str(staged.release)] = self._releases / staged.composition
        return links

    def _refuse_other_pins(self, staged: StagedRelease) -> None:
        """Reject a name for a tree if a staged release uses the name for another tree."""
        mine = staged.named
        for other in self.records.all():
            theirs = other.named
            for name in sorted(mine.keys() & theirs.keys()):
                if other.release != staged.release and mine[name] != theirs[name]:
                    raise IntegrityError(
                        f"is the tree {mine[name][:16]}… for {staged.release}, and"
                        f" {theirs[name][:16]}… for {other.release}, which is staged here",
                        where=name,
                        hint="find out which is right; 'localpuppet stage --accept-moved' accepts"
                        " both",
                    )

    def _link(self, staged: StagedRelease) -> None:
        files.make_private(self._releases)
        if fresh := not self.compositions.whole(staged):
            self.compositions.make(staged)
        links = self._named_links(staged)
        try:
            if self._approve is not None:
                own = str(staged.release)
                names = [name for name in links if name != own]
                paths, code = self.compositions.code(staged, self._modules / own)
                paths |= {str(self._modules / name): links[name] for name in names}
                self._approve(staged, paths, code)
        except LocalpuppetError:
            if fresh:
                files.remove_tree(self._releases / staged.composition)
            raise
        self.records.write(staged)
        for name, tree in links.items():
            link = self._modules / name
            if link.is_symlink() and link.readlink() == tree:
                continue
            files.make_public(link.parent)
            files.replace_link(link, tree)

    def _sweep(self, app: ReleasePath) -> None:
        """Remove incomplete files of a dead process."""
        rubbish = [*self._repository.rubbish(), *self.records.rubbish()]
        rubbish += [*files.half_written(self._state / TAGS_FILE)]
        rubbish += [*files.half_written(self._state / VERIFIED_FILE)]
        rubbish += [*self._releases.glob(".new-*"), *(self._modules / app).parent.glob(".*")]
        self.store.sweep(rubbish)


class Removal(Value):
    """The paths that gc removes; mirrors are of repositories that are not sources."""

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

    `forget` forgets what is known about a removed composition; `keep_staged` are the seconds that
    an unapplied staged release is kept.
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

        Raises:
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
        """Return what can be removed; a damaged record is an error, as nothing is safe then."""
        state = self.staging.store.directory
        module_links, records = ModuleLinks(state), BranchRecords(state)
        running = list(self.in_use())
        given = {path for _, modulepath in running for path in modulepath}
        current = map(self.ledger.current, self.ledger.sources())
        rollback = self.ledger.rollback()
        keep = {*named, *(app for app, _ in running), *self.good()}
        keep |= {rollback.release} if rollback else set()
        keep.update(app for app in current if app is not None)
        all_staged = self.staging.records.all()
        since = now - self.keep_staged
        keep |= {
            staged.release
            for staged in all_staged
            if self.staging.records.written_at(staged.release) >= since
            and staged.release not in self.ledger.order(staged.release.source)
        }
        kept = [staged for staged in all_staged if staged.release in keep]
        used = {path.parent for path in given}
        links = [path for path in module_links.unused(since=since) if path not in used]
        # Which commit of a branch a run uses that is on is not known: none goes meanwhile.
        busy = not all(app.is_tag for app, _ in running)
        branches = {
            branch: branch.release in keep or busy or records.written_at(branch.release) >= since
            for branch in records.all()
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

    def remove(self, removal: Removal) -> None:
        """Remove what `plan` returned; callers hold the locks for changes and for removal.

        After an error the remaining releases are complete, and gc can run again.
        """
        gone = {staged.release: staged for staged in self.staging.records.all()}
        kept = [staged for staged in gone.values() if staged.release in removal.remaining]
        for release in removal.releases:
            self.staging.remove(gone[release], kept=kept)
        branches = BranchRecords(self.staging.store.directory)
        for app in removal.branches:
            branches.remove(app)
        for name in removal.compositions:
            self.staging.compositions.remove(name)
            self.forget(name)
        for path in removal.links:
            files.remove_tree(path)
        for sha256 in removal.trees:
            self.staging.store.remove(sha256)
        for path in removal.archives:
            files.remove(path)
        for path in removal.mirrors:
            files.remove_tree(path)
