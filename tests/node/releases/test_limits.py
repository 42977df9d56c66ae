"""Limits of depth, number, name length and size: localpuppet refuses a tree before it writes."""

import os
import resource
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError
from localpuppet.base.machine.files import make_private, remove_tree
from localpuppet.node.releases.limits import (
    MAX_DEPTH,
    MAX_NAME,
    MAX_PATH,
    Budget,
    Limits,
    size_problem,
)
from localpuppet.node.releases.packages import tools as packs
from localpuppet.node.releases.store import Store
from tests.node.releases.packages.test_pack import ID, directory, member, pack
from tests.rigs.forge import Forge, Repo
from tests.rigs.node import COMMAND, PATIENCE, REPOSITORY, Node

MEMORY = 200 * 1024 * 1024


@pytest.fixture(autouse=True)
def nothing_deep_is_left(tmp_path: Path) -> Iterator[None]:
    """Remove the files of a failed test with rm, because pytest may fail to remove a deep tree."""
    yield
    subprocess.run(["rm", "-rf", tmp_path], check=True)


def fast_import(repo: Repo, paths: list[str], tag: str) -> None:
    """Commit and tag small files under names that are impossible in a work tree."""
    lines = ["blob\nmark :1\ndata 2\nx\n", "commit refs/heads/main\nmark :2\n"]
    lines += ["committer R <r@example.net> 1795176000 +0000\ndata 1\nx\n"]
    lines += [f"M 100644 :1 {path}\n" for path in ["manifest.yaml", *paths]]
    lines += [f"tag {tag}\nfrom :2\ntagger R <r@example.net> 1795176000 +0000\ndata 1\nx\n"]
    subprocess.run(
        ["git", "fast-import", "--quiet", "--force"],
        cwd=repo.path,
        input="".join(lines).encode(),
        check=True,
    )


def tree_of(repo: Repo, entry: str, count: int) -> str:
    listing = "".join(f"{entry}\tn{number}\n" for number in range(count))
    done = subprocess.run(
        ["git", "mktree"], cwd=repo.path, input=listing.encode(), capture_output=True, check=True
    )
    return done.stdout.decode().strip()


def bomb(repo: Repo, data: bytes, *, wide: int, levels: int) -> None:
    """Tag a few kilobytes of objects that expand to `wide ** levels` files."""
    file = repo.path.parent / "data"
    file.write_bytes(data)
    blob = repo.git("hash-object", "-w", str(file))
    tree = tree_of(repo, f"100644 blob {blob}", wide)
    for _ in range(levels - 1):
        tree = tree_of(repo, f"040000 tree {tree}", wide)
    commit = repo.git("commit-tree", tree, "-m", "bomb")
    repo.git("tag", "-a", "-m", "v1", "v1", commit)


def within_200_mb(node: Node, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *arguments],
        env=node.environment(PYTHONPATH=str(REPOSITORY)),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        pytest.param(
            lambda evil: fast_import(evil, ["d/" * 1900 + "x"], "v1"),
            f"is more than {MAX_DEPTH} directories deep",
            id="deep",
        ),
        pytest.param(
            lambda evil: fast_import(evil, ["/".join(["long" * 50] * 6) + "/x"], "v1"),
            f"a path has more than {MAX_PATH} bytes",
            id="long",
        ),
        pytest.param(
            lambda evil: bomb(evil, b"x", wide=30, levels=30), "too many members", id="members"
        ),
        pytest.param(
            lambda evil: bomb(evil, bytes(1024 * 1024), wide=70, levels=2), "too large", id="bytes"
        ),
    ],
)
def test_a_hostile_tree_is_refused_before_it_is_written_and_blocks_no_other_release(
    site: Node, forge: Forge, make: Callable[[Repo], None], problem: str
) -> None:
    evil = forge.repo("evil")
    make(evil)
    web = forge.repo("web")
    web.write({"manifest.yaml": f"modules:\n  evil: {{git: '{evil.url}', tag: v1}}\n"})
    refused = within_200_mb(site, "release", "lock", str(web.path))
    assert refused.returncode == 3, refused.stderr
    assert problem in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert list((site.state / "staging").iterdir()) == []
    site.run("stage", code=0)


def deep_tree(top: Path, depth: int) -> None:
    """Make directories deeper than any path can name."""
    top.mkdir(parents=True)
    fd = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("name" * 20, dir_fd=fd)
        inner = os.open("name" * 20, os.O_RDONLY, dir_fd=fd)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0o444, dir_fd=inner))
        os.close(fd)
        fd = inner
    os.close(fd)


def test_a_tree_of_any_depth_can_be_removed(tmp_path: Path) -> None:
    deep_tree(tmp_path / "deep", 2500)
    (tmp_path / "deep/link").symlink_to("/etc")
    (tmp_path / "kept").mkdir()
    (tmp_path / "deep/out").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "deep")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_rubbish_that_cannot_be_removed_is_a_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    store = Store(tmp_path / "state", note=warnings.append)
    make_private(tmp_path / "state/staging/dead")
    # A directory of the kernel, which cannot be removed.
    store.sweep([Path("/proc/self/fdinfo"), tmp_path / "state/staging/dead"])
    assert not (tmp_path / "state/staging/dead").exists()
    (line,) = warnings
    assert line.startswith(
        "warning: cannot remove files of a process that ended: /proc/self/fdinfo"
    )


@pytest.mark.parametrize(
    "name", ["d/" * (MAX_DEPTH + 1) + "x", "n" * (MAX_NAME + 1), "/".join(["n" * 200] * 6)]
)
def test_a_pack_with_such_names_is_refused_before_it_is_written(tmp_path: Path, name: str) -> None:
    parts = name.split("/")
    above = [directory("/".join([ID, *parts[:end]])) for end in range(1, len(parts))]
    file = pack(tmp_path / "evil.tar.gz", *above, member(f"{ID}/{name}", b"x"))
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(IntegrityError, match=r"deep|bytes"):
        packs.unpack(file, target)
    assert not any(path.is_file() for path in target.rglob("*"))


def test_directories_that_no_digest_covers_are_refused(tmp_path: Path) -> None:
    tree = f"{ID}/objects/{'b' * 64}"
    above = [directory(f"{ID}/objects"), directory(tree)]
    (tmp_path / "target").mkdir()
    good = pack(tmp_path / "good.tar.gz", *above)
    packs.unpack(good, tmp_path / "target")
    remove_tree(tmp_path / "target")
    (tmp_path / "target").mkdir()
    evil = pack(tmp_path / "evil.tar.gz", *above, *[directory(f"{tree}/{n}") for n in range(9)])
    with pytest.raises(IntegrityError, match="is an empty directory"):
        packs.unpack(evil, tmp_path / "target")
    with tarfile.open(good) as tar:
        assert len(tar.getnames()) == 3


def test_limits_are_checked_by_number_and_size() -> None:
    assert "deep" in size_problem(b"a/" * MAX_DEPTH + b"x")
    assert size_problem(b"a/" * (MAX_DEPTH - 1) + b"x") == ""
    assert size_problem(b"n" * MAX_NAME) == ""
    budget = Budget(Limits(unpacked=10, members=3))
    budget.take(9, where="x")
    budget.take(1, where="x")
    budget.take(0, where="x")
    with pytest.raises(IntegrityError, match="too many"):
        budget.take(0, where="x")
