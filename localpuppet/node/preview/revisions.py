"""The revisions that a preview compares: commits of a git repository, or its files as they are.

    main..HEAD    two commits
    main...HEAD   the commit where HEAD left main, and HEAD
    main          a commit, and the files as they are

A commit is checked out into the cache by its id, and the files as they are are copied there, so
that nothing changes while it is compiled. The repository stays unchanged.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from localpuppet.base.errors import IntegrityError, InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.formats.strict_json import canonical
from localpuppet.base.machine.files import CHUNK, disk_errors, make_private, remove_tree
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.open_tree import OpenTree, open_entry
from localpuppet.base.value import Value
from localpuppet.node.preview.cache_file import digest, refuse_foreign_cache
from localpuppet.node.preview.release_index import States, TreeStates, tree_metadata, tree_states
from localpuppet.node.preview.result import PreviewRevision
from localpuppet.node.releases.git.program import GitProgram, check_out, make_bare
from localpuppet.node.releases.limits import Budget, size_problem

WORK_TREE = "work tree"
# Checkouts that stay; each is used by the previews of one commit.
_KEPT = 8
# Seconds to wait for another preview that checks out.
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
        """Return the range."""
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
    budget: Callable[[], Budget]
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
                check_out(self.git, scratch, [(name, own, "tree")], files, self.budget())
                states = _checked(files / "tree")
            self.states.put(commit, states)
            (files / "tree").rename(place)
            self._note_metadata(place, commit)
        return tree

    def _is_whole(self, place: Path, commit: str) -> bool:
        """Return whether a checkout has the files that it had; files with new times are hashed."""
        states = self.states.get(commit)
        if states is None:
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
            _TreeCopy(self.budget(), own).directory(tree.descriptor, new, "")
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
            problem = size_problem(os.fsencode(name))
            if problem:
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
