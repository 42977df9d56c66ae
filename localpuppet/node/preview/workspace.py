"""A preview on this machine: revisions as releases, the cache, the captures, and the comparison.

    main..HEAD    two commits
    main...HEAD   the commit where HEAD left main, and HEAD
    main          a commit, and the files as they are

A commit is checked out into the cache by its id, and the files as they are are copied there, so
that nothing changes while it is compiled. The repository stays unchanged.
"""

import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from localpuppet import __version__
from localpuppet.base.errors import (
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    StateError,
    errors_at,
)
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.strict_json import canonical
from localpuppet.base.formats.text import shown_names
from localpuppet.base.machine.files import (
    CHUNK,
    add_durably,
    disk_errors,
    make_private,
    remove_tree,
)
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.open_tree import OpenTree, open_entry
from localpuppet.base.machine.own_program import shared_file
from localpuppet.base.machine.ports import Clock, Progress
from localpuppet.base.machine.processes import own_umask, unwound_by_signals
from localpuppet.base.value import Value
from localpuppet.node.preview.cache import PreviewCache, PreviewSide
from localpuppet.node.preview.cache_file import digest, refuse_foreign_cache
from localpuppet.node.preview.compile_request import LAYOUT, CompileEngine, layout_digest
from localpuppet.node.preview.node_capture import CapturedNode
from localpuppet.node.preview.nodes_directory import NodesDirectory
from localpuppet.node.preview.previewing import Preview, PreviewOptions, choose_shard
from localpuppet.node.preview.release_index import (
    ReleaseIndex,
    States,
    TreeStates,
    index_roots,
    tree_metadata,
    tree_states,
)
from localpuppet.node.preview.result import PreviewResult, PreviewRevision
from localpuppet.node.puppet.installation import Installation, ruby_state
from localpuppet.node.releases.git.program import GitProgram, check_out, make_bare
from localpuppet.node.releases.limits import Budget, size_problem
from localpuppet.node.releases.manifest import EMPTY, MANIFEST, Lock, ReleaseFiles
from localpuppet.node.releases.release import Release
from localpuppet.node.releases.release_records import StagedRelease

WORK_TREE = "work tree"
# Checkouts that stay; each is used by the previews of one commit.
_KEPT = 8
# Seconds to wait for another preview that checks out, or that fetches modules.
_PATIENCE = 300.0
_OBJECT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_GIT = ".git"
_REMOTE = "origin"
_METADATA = " metadata"


class RevisionRange(Value):
    """Two revisions as a user writes them; without `head`, the second is the files as they are.

    `from_fork` if the base is the commit where both parted.
    """

    base: str
    head: str
    from_fork: bool

    @classmethod
    def parse(cls, text: str) -> "RevisionRange":
        from_fork = "..." in text
        base, _, head = text.partition("..." if from_fork else "..")
        if not base or base.startswith("-") or head.startswith("-") or not text.isprintable():
            raise InvalidInputError(
                "is not a range of revisions",
                where=repr(text[:80]),
                hint="write BASE..HEAD, or BASE for the files as they are",
            )
        return cls(base=base, head=head or ("HEAD" if from_fork else ""), from_fork=from_fork)


class RevisionTree(Value):
    """The files of a revision in the cache."""

    revision: PreviewRevision
    directory: Path
    key: str


class Checkouts(Value):
    """The checkouts of a repository in a cache."""

    work_tree: Path
    directory: Path
    git: GitProgram
    states: TreeStates
    own: tuple[Path, ...] = ()

    def trees(self, revisions: RevisionRange) -> tuple[RevisionTree, RevisionTree]:
        """Return the files of both revisions."""
        with Flock.need(
            self.directory / "checkout.lock",
            "another preview checks out its revisions",
            hint="try again when it has ended",
            seconds=_PATIENCE,
        ):
            places = self._places()
            base = self._commit(revisions.base)
            if not revisions.head:
                trees = self._checkout(places, revisions.base, base), self._copy(places)
            else:
                head = self._commit(revisions.head)
                if revisions.from_fork:
                    base = self._fork(base, head)
                trees = (
                    self._checkout(places, revisions.base, base),
                    self._checkout(places, revisions.head, head),
                )
            _prune(places, {tree.directory for tree in trees})
        return trees

    def _places(self) -> Path:
        # Puppet names files relative to a release by this name of the directory above it.
        places = self.directory / "releases"
        make_private(places)
        refuse_foreign_cache(places)
        for rest in places.glob(".*"):  # of a process that died here
            remove_tree(rest)
        return places

    @property
    def _repository(self) -> Path:
        repository = self.work_tree / _GIT
        if not repository.exists():
            raise InvalidInputError(
                "is not the top directory of a git work tree",
                where=str(self.work_tree),
                hint="run it where manifest.yaml is",
            )
        return repository

    def _commit(self, name: str) -> str:
        words = "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}"
        return self._id(name, *words, problem=f"there is no commit {name!r}", missing=name)

    def _fork(self, base: str, head: str) -> str:
        problem = "the two revisions have no commit in common"
        return self._id("merge-base", "merge-base", base, head, problem=problem)

    def _cure(self, missing: str) -> str:
        """Return the cure for a revision that the repository lacks."""
        words = "for-each-ref", "--count=1", "--format=x", f"refs/remotes/{_REMOTE}/{missing}"
        if missing and self.git.run(self._repository, *words):
            return f"the clone has it as a branch of its remote: write '{_REMOTE}/{missing}'"
        shallow = self.git.run(self._repository, "rev-parse", "--is-shallow-repository")
        if shallow.strip() == b"true":
            return "a pipeline often has one commit only: fetch the whole history"
        if missing:
            return "check the name, or fetch it: 'git fetch --all'"
        return "write BASE..HEAD to compare them nevertheless"

    def _id(self, where: str, *words: str, problem: str, missing: str = "") -> str:
        """Return the object id that git prints."""
        text = self.git.run(
            self._repository,
            *words,
            failure=lambda _text: InvalidInputError(
                problem, where=str(self.work_tree), hint=self._cure(missing)
            ),
        )
        name = text.decode("ascii", "replace").strip()
        if not _OBJECT_ID.match(name):
            raise InvalidInputError("git printed no object id", where=where)
        return name

    def _checkout(self, places: Path, name: str, commit: str) -> RevisionTree:
        revision = PreviewRevision(name=name, commit=commit)
        place = places / commit
        tree = RevisionTree(revision=revision, directory=place, key=commit)
        if place.is_dir():
            if self._is_whole(place, commit):
                os.utime(place)
                return tree
            remove_tree(place)
        words = "rev-parse", "--verify", f"{commit}^{{tree}}"
        own = self._id(name, *words, problem=f"{commit} has no tree")
        common = self.git.run(
            self._repository, "rev-parse", "--path-format=absolute", "--git-common-dir"
        )
        with _temporary(places) as new:
            scratch, files = new / "git", new / "files"
            for directory in (new, scratch, files):
                directory.mkdir(mode=0o700)
            make_bare(scratch, alternates=[Path(os.fsdecode(common.rstrip(b"\n")))])
            with errors_at(name, LocalpuppetError):
                check_out(self.git, scratch, [(name, own, "tree")], files, Budget())
                states = _checked(files / "tree")
            self.states.put(commit, states)
            (files / "tree").rename(place)
            self._note_metadata(place, commit)
        return tree

    def _is_whole(self, place: Path, commit: str) -> bool:
        """Return whether a checkout has the files that it had; files with new times are hashed."""
        if (states := self.states.get(commit)) is None:
            return False
        if self.states.get(f"{commit}{_METADATA}") == {"": tree_metadata(place)}:
            return True
        if tree_states(place) != states:
            return False
        self._note_metadata(place, commit)
        return True

    def _note_metadata(self, place: Path, commit: str) -> None:
        self.states.put(f"{commit}{_METADATA}", {"": tree_metadata(place)})

    def _copy(self, places: Path) -> RevisionTree:
        # A root or cache of a job is often in the work tree. A copy of the cache would contain
        # itself, and a state directory has keys.
        own = [path.stat() for path in self.own if path.is_dir()]
        with _temporary(places) as new, OpenTree(self.work_tree) as tree:
            _TreeCopy(Budget(), own).directory(tree.descriptor, new, "")
            states = tree_states(new, shown=self.work_tree)
            key = digest(canonical({**states})).hex()
            place = places / key
            if place.is_dir():
                remove_tree(place)
            new.rename(place)
            os.utime(place)
            self.states.put(key, states)
        return RevisionTree(revision=PreviewRevision(name=WORK_TREE), directory=place, key=key)


@contextmanager
def _temporary(places: Path) -> Iterator[Path]:
    """Yield the path of a new directory, and remove that directory at the end."""
    new = places / f".{os.urandom(6).hex()}"
    with disk_errors(new):
        try:
            yield new
        finally:
            remove_tree(new)


def _checked(checkout: Path) -> States:
    """Return the states of a commit's files, which a node would refuse for the same reasons."""
    try:
        return tree_states(checkout, shown=Path())
    except InvalidInputError as error:
        raise IntegrityError(error.what, where=error.where, hint=error.hint) from error


class _TreeCopy:
    """Copies the files of a work tree, which may change meanwhile, and its links as they are."""

    def __init__(self, budget: Budget, own: Sequence[os.stat_result]) -> None:
        self._budget, self._own = budget, own

    def directory(self, source: int, target: Path, start: str) -> None:
        """Copy an open directory, whose names begin with `start`, without git's files."""
        target.mkdir(mode=0o755)
        for entry in sorted(os.listdir(source)):
            if entry == _GIT:
                continue
            name = f"{start}{entry}"
            if problem := size_problem(os.fsencode(name)):
                raise InvalidInputError(problem, where=ascii(name[:120]))
            try:
                descriptor = open_entry(entry, source)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                self._budget.take(0, where=name)
                (target / entry).symlink_to(os.readlink(entry, dir_fd=source))
                continue
            try:
                self._entry(descriptor, target / entry, name)
            finally:
                os.close(descriptor)

    def _entry(self, source: int, target: Path, name: str) -> None:
        status = os.fstat(source)
        if stat.S_ISDIR(status.st_mode):
            if not any(os.path.samestat(status, own) for own in self._own):
                self.directory(source, target, f"{name}/")
            return
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInputError("is not a regular file", where=name)
        left = status.st_size
        self._budget.take(left, where=name)
        with target.open("xb") as copy:
            while data := os.read(source, min(left, CHUNK)):
                copy.write(data)
                left -= len(data)
        target.chmod(0o755 if status.st_mode & stat.S_IXUSR else 0o644)


def _prune(places: Path, used: set[Path]) -> None:
    """Remove checkouts that were not used for long."""
    with disk_errors(places), suppress(FileNotFoundError):
        known = sorted(places.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in known[_KEPT:]:
            if path not in used:
                remove_tree(path)


class PreviewOrder(Value):
    """What a preview compares.

    Attributes:
        trusted: Whether the user trusts the code of the second revision, too.
        staged: Whether the revisions are releases that are staged on this machine; then there is no
            work tree.
        names: The nodes to compare; none for all with a capture.
    """

    work_tree: Path
    revisions: RevisionRange
    nodes: Path
    cache: Path | None = None
    shard: tuple[int, int] | None = None
    trusted: bool = False
    staged: bool = False
    names: tuple[NodeName, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PreviewWorkspace:
    """Where previews of one root work.

    Attributes:
        work_tree: Returns the code of a work tree: see `MutableCode.work_tree`.
        engine: Returns the engine that compiles, for the key with which it marks secrets.
        staged: Returns a release that is staged on this machine, and its record.
    """

    state: Path
    site_manifest: Path
    own_modules: Path
    files: ReleaseFiles
    git: GitProgram
    work_tree: Callable[..., Release]
    engine: Callable[[str], CompileEngine]
    staged: Callable[[ReleasePath], tuple[Release, StagedRelease]]
    lock_store: Callable[[], Flock]
    puppet: Callable[[], Installation]
    path: str
    clock: Clock
    observe: Callable[[str], Progress]

    def preview(self, order: PreviewOrder, options: PreviewOptions) -> PreviewResult:
        """Compare the catalogs of nodes; see `previewing.Preview`."""
        if order.shard is not None:
            options = replace(options, shard=f"{order.shard[0]}/{order.shard[1]}")
        self._refuse_mixture(order)
        progress = self.observe("preview")
        locked = self.lock_store() if order.staged else nullcontext()
        with unwound_by_signals(), own_umask(), locked, self.cache(order.cache) as cache:
            inside = None if order.staged else order.work_tree
            nodes = self.nodes(order.nodes, cache, order.shard, inside=inside, names=order.names)
            sides = self.staged_sides(order, cache) if order.staged else self.sides(order, cache)
            progress.begin()
            try:
                comparison = Preview(
                    sides,
                    nodes,
                    cache=cache,
                    engine=self.engine_for(order.cache),
                    clock=self.clock,
                    progress=progress,
                    options=options,
                )
                return comparison.result()
            finally:
                progress.close()

    def _refuse_mixture(self, order: PreviewOrder) -> None:
        """Reject a cache among the captures, whose files would be taken for nodes."""
        cache, nodes = self.cache_directory(order.cache).resolve(), order.nodes.resolve()
        if cache.is_relative_to(nodes):
            raise InvalidInputError(
                f"is in the directory of the captures, {order.nodes}",
                where=f"--cache: {self.cache_directory(order.cache)}",
                hint="pass another directory with '--cache'",
            )

    def engine_for(self, directory: Path | None) -> CompileEngine:
        return self.engine(self._mark_key(directory))

    def cache_directory(self, directory: Path | None) -> Path:
        return directory or self.state / "preview"

    @contextmanager
    def cache(self, directory: Path | None) -> Iterator[PreviewCache]:
        """Yield the cache."""
        key = hashlib.sha256(self._mark_key(directory).encode()).hexdigest()
        platform = f"{self._platform} {key}"
        cache = PreviewCache(self.cache_directory(directory), platform=platform)
        try:
            yield cache
        finally:
            cache.close()

    def _mark_key(self, directory: Path | None) -> str:
        """Return the key with which catalogs of a cache mark secrets, hexadecimal."""
        cache = self.cache_directory(directory)
        make_private(cache)
        if not os.access(cache, os.W_OK | os.X_OK):
            raise StateError(
                "the cache is not writable",
                where=str(cache),
                hint="change its mode, copy it, or pass another directory with '--cache'",
            )
        file = cache / "mark.key"
        refuse_foreign_cache(file)
        with disk_errors(file):
            add_durably(file, secrets.token_hex(32).encode())
            return file.read_text("ascii", "replace")

    @cached_property
    def _platform(self) -> str:
        """The versions of the programs that a catalog depends on."""
        installation = self.puppet()
        own = hashlib.sha256()
        for directory in (self.own_modules, shared_file("preview").parent):
            own.update(repr(sorted(tree_states(directory).items())).encode())
        ruby = installation.interpreter(self.path)
        with disk_errors(Path(installation.command)):
            own.update((ruby_state(ruby) if ruby else "").encode())
        words = (__version__, installation.version, installation.command, own.hexdigest())
        return " ".join(words)

    def sides(self, order: PreviewOrder, cache: PreviewCache) -> tuple[PreviewSide, PreviewSide]:
        """Return the releases of both revisions, with their modules on this machine."""
        checkouts = Checkouts(
            work_tree=order.work_tree,
            directory=self.cache_directory(order.cache),
            git=self.git,
            states=cache,
            own=(self.cache_directory(order.cache), self.state),
        )
        base, head = checkouts.trees(order.revisions)
        trusted = order.trusted or head.key == base.key
        scope = "" if trusted else head.key
        # A commit is read as a release; only the files as they are may be those of this machine.
        own = order.trusted and head.revision.commit is None
        first = self.side(base, cache)  # with what its lock names on this machine
        lock = None if trusted else self.files.lock(base.directory) or EMPTY
        return first, self.side(head, cache, scope=scope, work_trees=own, base=lock)

    def _turn(self) -> Flock:
        """Return the lock with which previews of one root fetch modules one after the other."""
        return Flock.need(
            self.state / "preview.lock",
            "another preview fetches modules",
            hint="try again when it has ended, or pass another '--root'",
            seconds=_PATIENCE,
        )

    def side(
        self,
        tree: RevisionTree,
        cache: PreviewCache,
        *,
        scope: str = "",
        work_trees: bool = False,
        base: Lock | None = None,
    ) -> PreviewSide:
        """Return the release of a revision, with its modules on this machine.

        With `work_trees` its lock may name work trees of modules on this machine. An untrusted
        revision has the lock of its `base`.
        """
        name = tree.revision.name
        if not (tree.directory / MANIFEST).exists():
            raise InvalidInputError(
                f"this revision has no {MANIFEST}",
                where=name,
                hint="make it from the Puppetfile: 'localpuppet release import'; then commit it",
            )
        with _errors_in(tree):
            with self._turn():
                warnings: list[str] = []
                release = self.work_tree(
                    tree.directory, name, work_trees=work_trees, warn=warnings.append, base=base
                )
            side = self._side(tree.revision, release, tree.key, cache, scope)
            return replace(side, warnings=tuple(warnings))

    def staged_sides(
        self, order: PreviewOrder, cache: PreviewCache
    ) -> tuple[PreviewSide, PreviewSide]:
        """Return two staged releases; nothing is fetched."""
        names = order.revisions.base, order.revisions.head
        first, second = (self.staged(ReleasePath.parse(name, where="release")) for name in names)
        scopes = "", "" if order.trusted or first[1] == second[1] else second[1].composition
        before, after = (
            self._side(
                PreviewRevision(name=name, commit=record.pin.commit),
                release,
                record.pin.tree_sha256,
                cache,
                scope,
            )
            for name, scope, (release, record) in zip(names, scopes, (first, second), strict=True)
        )
        return before, after

    def _side(
        self, revision: PreviewRevision, release: Release, own: str, cache: PreviewCache, scope: str
    ) -> PreviewSide:
        """Return a release with its index; see `index_roots` for `own`."""
        roots = index_roots(release, self.site_manifest, own=own)
        index = ReleaseIndex.of(roots, cache)
        index.states[LAYOUT] = layout_digest(
            release, own_modules=self.own_modules, site_manifest=self.site_manifest
        )
        return PreviewSide(
            revision=revision,
            release=release,
            index=index,
            is_stable=all(root.digest for root in roots if root.prefix in release.trees),
            scope=scope,
        )

    def nodes(
        self,
        directory: Path,
        cache: PreviewCache,
        shard: tuple[int, int] | None = None,
        *,
        inside: Path | None = None,
        names: Sequence[NodeName] = (),
    ) -> list[CapturedNode]:
        """Return the nodes in a directory, or a part of them."""
        nodes = NodesDirectory(directory, inside=inside).nodes(cache)
        if missing := {*names} - {node.name for node in nodes}:
            raise InvalidInputError(
                f"has no capture of {shown_names(sorted(missing))}",
                where=str(directory),
                hint=f"run 'localpuppet capture --node {min(missing)} {directory}'",
            )
        nodes = [node for node in nodes if node.name in names] if names else nodes
        if shard is None:
            return nodes
        chosen = choose_shard((node.name for node in nodes), *shard)
        return [node for node in nodes if node.name in chosen]


@contextmanager
def _errors_in(tree: RevisionTree) -> Iterator[None]:
    """Raise errors of the block with names of the revision's files, not with those of the copy."""
    try:
        yield
    except LocalpuppetError as error:
        copy = str(tree.directory)
        what, where, hint = (
            text.replace(f"{copy}/", "").replace(copy, ".")
            for text in (error.what, error.where, error.hint)
        )
        where = "" if where == "." else where
        raise type(error)(what, where=where, hint=hint).at(tree.revision.name) from error
