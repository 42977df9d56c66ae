"""The revisions that a preview compares: commits of a git repository, or its files as they are.

    main..HEAD    two commits
    main...HEAD   the commit where HEAD left main, and HEAD
    main          a commit, and the files as they are

A commit is checked out into the cache by its id, and the files as they are are copied there, so
that nothing changes while it is compiled. The repository stays unchanged.
"""

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.formats.json_text import canonical
from localpuppet.base.machine.files import disk_errors, make_private, remove_tree
from localpuppet.base.machine.flock import Flock
from localpuppet.node.preview.cache_file import refuse_foreign_cache
from localpuppet.node.preview.catalog_items import digest
from localpuppet.node.preview.release_index import TreeStates, tree_metadata, tree_states
from localpuppet.node.preview.result import PreviewRevision
from localpuppet.node.releases.git.checkout import check_out
from localpuppet.node.releases.git.program import GitProgram, make_bare
from localpuppet.node.releases.limits import Budget

WORK_TREE = "work tree"
# Checkouts that stay; each is used by the previews of one commit.
_KEPT = 8
# Seconds to wait for another preview that checks out.
_PATIENCE = 300.0
_OBJECT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_GIT = ".git"
_REMOTE = "origin"
_METADATA = " metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRange:
    """Two revisions, as a user writes them.

    Attributes:
        base: The revision before the change.
        head: The revision after it; empty for the files as they are.
        from_fork: Whether the base is the commit where both parted.
    """

    base: str
    head: str
    from_fork: bool

    @classmethod
    def parse(cls, text: str) -> "RevisionRange":
        """Return the range.

        Raises:
            InvalidInputError: It names no base.
        """
        from_fork = "..." in text
        base, _, head = text.partition("..." if from_fork else "..")
        if not base or base.startswith("-") or head.startswith("-") or not text.isprintable():
            raise InvalidInputError(
                "is not a range of revisions",
                where=repr(text[:80]),
                hint="write BASE..HEAD, or BASE for the files as they are",
            )
        return cls(base=base, head=head or ("HEAD" if from_fork else ""), from_fork=from_fork)


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionTree:
    """The files of a revision in the cache.

    Attributes:
        revision: The revision.
        directory: The directory, which nothing changes.
        key: The name by which the states of its files are remembered.
    """

    revision: PreviewRevision
    directory: Path
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkouts:
    """The checkouts of a repository in a cache.

    Attributes:
        work_tree: The top of the repository.
        directory: The directory of the cache.
        git: Git.
        states: Remembers the files of commits.
        budget: Returns what one checkout may write.
        own: Directories of localpuppet, which are no files of the work tree.
    """

    work_tree: Path
    directory: Path
    git: GitProgram
    states: TreeStates
    budget: Callable[[], Budget]
    own: tuple[Path, ...] = ()

    def trees(self, revisions: RevisionRange) -> tuple[RevisionTree, RevisionTree]:
        """Return the files of both revisions.

        Raises:
            InvalidInputError: There is no such revision, or a file cannot be used.
            IntegrityError: A commit holds a submodule, or is too large.
            BusyError: Another preview checks out for a long time.
        """
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
        new = places / f".{os.urandom(6).hex()}"
        scratch, files = new / "git", new / "files"
        with disk_errors(new):
            for directory in (new, scratch, files):
                directory.mkdir(mode=0o700)
            make_bare(scratch, alternates=[Path(os.fsdecode(common.rstrip(b"\n")))])
            with errors_at(name, LocalpuppetError):
                check_out(self.git, scratch, [(name, own, "tree")], files, self.budget())
            self.states.put(commit, tree_states(files / "tree"))
            (files / "tree").rename(place)
            remove_tree(new)
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

    def _is_no_code(self, directory: str, names: list[str]) -> set[str]:
        """Return what a copy of the work tree leaves out: git's files and those of localpuppet.

        A root or cache of a job is often in the work tree. A copy of the cache would contain
        itself, and a state directory has keys.
        """
        place = Path(directory).resolve()
        own = {path.name for path in map(Path.resolve, self.own) if path.parent == place}
        return ({_GIT} | own) & {*names}

    def _copy(self, places: Path) -> RevisionTree:
        new = places / f".{os.urandom(6).hex()}"
        with disk_errors(new):
            shutil.copytree(self.work_tree, new, symlinks=True, ignore=self._is_no_code)
            new.chmod(0o700)
            states = tree_states(new)
            key = digest(canonical({**states})).hex()
            place = places / key
            if place.is_dir():
                remove_tree(place)
            new.rename(place)
            os.utime(place)
            self.states.put(key, states)
        return RevisionTree(revision=PreviewRevision(name=WORK_TREE), directory=place, key=key)


def _prune(places: Path, used: set[Path]) -> None:
    """Remove checkouts that were not used for long."""
    with disk_errors(places), suppress(FileNotFoundError):
        known = sorted(places.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in known[_KEPT:]:
            if path not in used:
                remove_tree(path)
