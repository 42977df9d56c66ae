"""Revisions of a repository become directories in the cache; the repository stays unchanged."""

import hashlib
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError, InvalidInputError, StateError
from localpuppet.base.machine.processes import own_umask
from localpuppet.node.preview.cache import PreviewCache
from localpuppet.node.preview.release_index import tree_states
from localpuppet.node.preview.workspace import Checkouts, RevisionRange, RevisionTree
from localpuppet.node.releases.git.program import GitProgram
from tests.rigs.forge import Forge, Repo


class Repository(Repo):
    """A git repository with a cache beside it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(Forge(directory).repo("repository").path)
        self.cache = PreviewCache(directory / "cache", platform="test")
        self.checkouts = Checkouts(
            work_tree=self.path,
            directory=directory / "cache",
            git=GitProgram(env=dict(os.environ), allow_file=False, timeout=60),
            states=self.cache,
        )

    def trees(self, text: str) -> tuple[RevisionTree, RevisionTree]:
        return self.checkouts.trees(RevisionRange.parse(text))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_the_trees_of_two_commits_are_checked_out(repository: Repository) -> None:
    first, second = repository.commit({"a": "1"}), repository.commit({"a": "2", "b": "new"})
    before = repository.git("status", "--porcelain", "--ignored")
    index = (repository.path / ".git" / "index").read_bytes()
    base, head = repository.trees("HEAD~1..HEAD")
    assert (base.revision.commit, head.revision.commit) == (first, second)
    assert (base.revision.name, head.revision.name) == ("HEAD~1", "HEAD")
    assert (base.directory / "a").read_text() == "1"
    assert not (base.directory / "b").exists()
    assert (head.directory / "a").read_text() == "2"
    assert repository.git("status", "--porcelain", "--ignored") == before
    assert (repository.path / ".git" / "index").read_bytes() == index
    assert base.directory.stat().st_mode & 0o777 in (0o700, 0o755)


def test_uncommitted_files_are_copied(repository: Repository) -> None:
    repository.commit({"a": "1"})
    (repository.path / "a").write_text("uncommitted")
    (repository.path / "untracked").write_text("u")
    _, head = repository.trees("main")
    assert (head.revision.name, head.revision.commit) == ("work tree", None)
    assert (head.directory / "a").read_text() == "uncommitted"
    assert (head.directory / "untracked").exists()
    assert not (head.directory / ".git").exists()
    (repository.path / "a").write_text("later")
    _, again = repository.trees("main")
    assert again.directory != head.directory
    assert (head.directory / "a").read_text() == "uncommitted"


def test_a_cache_and_a_root_in_the_work_tree_are_not_copied(repository: Repository) -> None:
    repository.commit({"a": "1"})
    cache, state = repository.path / "ci" / "cache", repository.path / "ci" / "root" / "var"
    for directory in (cache, state):
        directory.mkdir(parents=True)
        (directory / "file").write_text("of localpuppet")
    (repository.path / "ci" / "own").write_text("of the repository")
    inside = replace(repository.checkouts, directory=cache, own=(cache, state))
    _, head = inside.trees(RevisionRange.parse("main"))
    copied = [path for path in head.directory.rglob("*") if path.is_file()]
    assert {path.relative_to(head.directory).as_posix() for path in copied} == {"a", "ci/own"}


def test_three_dots_use_the_common_ancestor(repository: Repository) -> None:
    fork = repository.commit({"a": "1"})
    repository.git("checkout", "-qb", "topic")
    head = repository.commit({"a": "topic"})
    repository.git("checkout", "-q", "main")
    repository.commit({"b": "main continues"})
    base, topic = repository.trees("main...topic")
    assert (base.revision.commit, topic.revision.commit) == (fork, head)


def test_a_changed_checkout_is_rebuilt(repository: Repository) -> None:
    repository.commit({"a": "1"})
    _, head = repository.trees("HEAD..HEAD")
    (head.directory / "a").write_text("changed in the cache")
    (head.directory / "new").write_text("")
    _, again = repository.trees("HEAD..HEAD")
    assert again.directory == head.directory
    assert (again.directory / "a").read_text() == "1"
    assert not (again.directory / "new").exists()


def test_old_checkouts_are_removed(repository: Repository) -> None:
    for number in range(12):
        repository.commit({"a": str(number)})
        repository.trees("HEAD..HEAD")
    places = list((repository.checkouts.directory / "releases").iterdir())
    assert len(places) == 8


def test_an_invalid_range_or_a_missing_revision_is_refused(repository: Repository) -> None:
    for text in ("", "..HEAD", "--all..HEAD", "main..-x", "a\nb"):
        with pytest.raises(InvalidInputError, match="is not a range of revisions"):
            RevisionRange.parse(text)
    repository.commit({"a": "1"})
    for text in ("missing..HEAD", "HEAD..missing", "HEAD:a..HEAD", "HEAD^5..HEAD"):
        with pytest.raises(InvalidInputError, match="there is no commit"):
            repository.trees(text)


def in_clone(repository: Repository, *words: str) -> Repository:
    """Return a clone of the branch `main`, as a pipeline makes it."""
    (repository.path.parent / "job").mkdir()
    clone = Repository(repository.path.parent / "job")
    clone.git("remote", "add", "origin", repository.path.as_uri())
    clone.git("fetch", "-q", *words, "origin", "main:refs/remotes/origin/main")
    clone.git("checkout", "-q", "--detach", "origin/main")
    return clone


def test_a_branch_that_is_only_on_the_remote_is_named(repository: Repository) -> None:
    repository.commit({"a": "1"})
    clone = in_clone(repository)
    with pytest.raises(InvalidInputError, match=r"no commit 'main'.*write 'origin/main'"):
        clone.trees("main...HEAD")
    with pytest.raises(InvalidInputError, match=r"no commit 'trunc'.*check the name"):
        clone.trees("trunc...HEAD")
    base, head = clone.trees("origin/main...HEAD")
    assert base.key == head.key


def test_revisions_without_a_common_commit_need_another_range(repository: Repository) -> None:
    repository.commit({"a": "1"})
    repository.commit({"a": "2"})
    clone = in_clone(repository, "--depth", "1")
    with pytest.raises(InvalidInputError, match=r"no commit 'HEAD\^'.*fetch the whole history"):
        clone.trees("HEAD^..HEAD")
    repository.git("checkout", "-q", "--orphan", "other")
    repository.commit({"b": "1"})
    with pytest.raises(InvalidInputError, match=r"no commit in common.*write BASE\.\.HEAD"):
        repository.trees("main...other")


def test_a_full_disk_is_no_damage(repository: Repository) -> None:
    repository.commit({f"f{number}": f"{number}" * 4096 for number in range(64)})
    cache = repository.path.parent / "cache"
    words = ["mount", "-t", "tmpfs", "-o", "size=100k,mode=0700", "tmpfs", str(cache)]
    subprocess.run(words, check=True)
    try:
        with pytest.raises(StateError, match=r"full|No space"):
            repository.trees("HEAD..HEAD")
    finally:
        subprocess.run(["umount", str(cache)], check=True)


def test_a_directory_that_is_not_the_top_of_a_work_tree_is_refused(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    inner = repository.path / "inner"
    inner.mkdir()
    (inner / "x").write_text("")
    repository.commit({"a": "1"})
    other = replace(repository.checkouts, work_tree=inner)
    with pytest.raises(InvalidInputError, match="not the top directory"):
        other.trees(RevisionRange.parse("HEAD..HEAD"))


@pytest.mark.parametrize("depth", range(1, 12))
def test_a_link_that_leaves_is_rejected_at_any_depth(repository: Repository, depth: int) -> None:
    """It dangles where the commit is checked, and may lead to a file where it is used."""
    (repository.path / "files").mkdir()
    target = "../" * depth + str(repository.path.parent).lstrip("/") + "/token"
    (repository.path.parent / "token").write_text("of the job")
    (repository.path / "files/f").symlink_to(target)
    repository.commit({"a": "1"})
    if depth == 1:
        repository.trees("HEAD..HEAD")  # a directory of that name could be in the tree
        return
    with pytest.raises(IntegrityError, match=r"^HEAD: files/f: is a link that leads out"):
        repository.trees("HEAD..HEAD")
    assert not list((repository.checkouts.directory / "releases").glob("*"))


def test_a_link_to_a_link_of_a_commit_that_leaves_is_rejected(repository: Repository) -> None:
    (repository.path / "a/b").mkdir(parents=True)
    (repository.path / "c").mkdir()
    (repository.path / "a/b/c").symlink_to("../../c")
    (repository.path / "a/b/out").symlink_to("c/../../token")  # `a/token` by its words
    (repository.path / "c/file").write_text("")
    repository.commit({"file": "1"})
    with pytest.raises(IntegrityError, match=r"a/b/out: is a link that leads out"):
        repository.trees("HEAD..HEAD")


def chain(top: Path, length: int) -> None:
    """Write directories of which each has two links to the next, and the last one a file."""
    for number in range(length):
        (top / f"d{number}").mkdir(parents=True)
        for name in "ab":
            (top / f"d{number}" / name).symlink_to(f"../d{number + 1}")
    (top / f"d{length}").mkdir()
    (top / f"d{length}/file").write_text("x")


def test_links_to_directories_with_links_are_followed_up_to_a_limit(tmp_path: Path) -> None:
    """Two links in each of 30 directories are a billion ways to one file."""
    chain(short := tmp_path / "short", 3)
    states = tree_states(short)
    assert states["d0/a/b/a/file"] == states["d3/file"] == hashlib.sha256(b"x").hexdigest()
    chain(long := tmp_path / "long", 14)
    limit = "has more than 10000 links below links to directories"
    with pytest.raises(InvalidInputError, match=limit):
        tree_states(long)


def test_a_copy_has_no_file_of_the_job(repository: Repository) -> None:
    repository.commit({"a": "1"})
    (repository.path / "out").symlink_to("/etc")
    with pytest.raises(InvalidInputError, match="leads out of its tree"):
        repository.trees("main")
    (repository.path / "out").unlink()
    os.mkfifo(repository.path / "fifo")
    with pytest.raises(InvalidInputError, match="fifo: is not a regular file"):
        repository.trees("main")
    (repository.path / "fifo").unlink()
    with (repository.path / "sparse").open("wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(IntegrityError, match="sparse: too large"):
        repository.trees("main")
    assert not [path for path in (repository.checkouts.directory).rglob("sparse") if path.is_file()]


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_copy_can_be_read_by_the_compiler(repository: Repository, mask: int) -> None:
    repository.commit({"a": "1"})
    (repository.path / "a").chmod(0o600)
    (repository.path / "b").mkdir(mode=0o700)
    (repository.path / "b/run").write_text("")
    (repository.path / "b/run").chmod(0o700)
    with own_umask(mask):
        _, head = repository.trees("main")
    modes = {path.name: path.stat().st_mode & 0o777 for path in head.directory.rglob("*")}
    assert {name: modes[name] for name in ("a", "run")} == {"a": 0o644, "run": 0o755}


def test_a_linked_work_tree_is_accepted(repository: Repository, tmp_path: Path) -> None:
    repository.commit({"a": "1"})
    repository.git("worktree", "add", "-q", "-b", "feature/x", str(tmp_path / "other"))
    other = replace(repository.checkouts, work_tree=tmp_path / "other")
    base, head = other.trees(RevisionRange.parse("main..feature/x"))
    assert base.directory == head.directory
