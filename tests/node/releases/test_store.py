"""The content store: a tree is complete under its digest, or missing."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError, StateError
from localpuppet.node.releases.store import Store, tree_digest
from tests.rigs.staged import tree_of

FILES = {"manifests/init.pp": b"class a {}\n", "files/empty": b"", "README": b"x" * 3_000_000}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "var")


def arrive(store: Store, files: Mapping[str, bytes] = FILES) -> Path:
    tree = store.staging() / "tree"
    return plant(tree, files)


def plant(tree: Path, files: Mapping[str, bytes]) -> Path:
    tree.mkdir(parents=True)
    for name, data in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data)
    return tree


def add(store: Store, files: Mapping[str, bytes] = FILES) -> str:
    return store.add([("a", arrive(store, files))])["a"]


def test_a_tree_is_stored_under_its_digest(store: Store) -> None:
    sha256 = add(store)
    assert sha256 == tree_of(FILES)
    assert (store.has(sha256), store.sound(sha256), store.digests()) == (True, True, [sha256])
    assert store.problem(sha256, full=True) == ""
    path = store.path(sha256)
    assert {name: (path / name).read_bytes() for name in FILES} == FILES
    assert tree_digest(path, where="a") == sha256


def test_a_missing_store_is_empty(store: Store) -> None:
    assert (store.digests(), store.has("a" * 64), store.sound("a" * 64)) == ([], False, False)
    assert store.problem("a" * 64, full=False) == "is missing or incomplete"


def test_the_digest_depends_on_names_kinds_bytes_and_links(store: Store, tmp_path: Path) -> None:
    def link(tree: Path) -> None:
        (tree / "link").symlink_to("README")

    changes: list[Callable[[Path], object]] = [
        lambda tree: None,
        lambda tree: (tree / "README").chmod(0o755),
        lambda tree: (tree / "README").rename(tree / "readme"),
        lambda tree: (tree / "README").write_bytes(b"y"),
        lambda tree: (tree / "more").touch(),
        link,
        lambda tree: (tree / "link").write_text("README"),
    ]
    digests = []
    for number, change in enumerate(changes):
        change(plant(tmp_path / str(number), FILES))
        digests.append(tree_digest(tmp_path / str(number), where="a"))
    assert len(set(digests)) == len(changes)


def test_the_digest_ignores_order_permissions_times_and_empty_directories(tmp_path: Path) -> None:
    one, other = plant(tmp_path / "1", FILES), plant(tmp_path / "2", dict(reversed(FILES.items())))
    (other / "README").chmod(0o600)
    os.utime(other / "README", (1, 1))
    (other / "an empty directory").mkdir()
    assert tree_digest(one, where="1") == tree_digest(other, where="2")


def test_stored_files_are_read_only_and_executable_ones_stay_executable(store: Store) -> None:
    tree = arrive(store, {"run.sh": b"#!/bin/sh\n", "data": b""})
    (tree / "run.sh").chmod(0o4711)
    sha256 = store.add([("a", tree)])["a"]
    modes = {path.name: path.stat().st_mode & 0o7777 for path in store.path(sha256).iterdir()}
    assert modes == {"run.sh": 0o555, "data": 0o444}


def test_equal_trees_are_stored_once(store: Store) -> None:
    staging = store.staging()
    trees = [(name, plant(staging / name, FILES)) for name in ("a", "b")]
    sha256 = tree_of(FILES)
    assert store.add(trees) == {"a": sha256, "b": sha256}
    assert (store.digests(), store.problem(sha256, full=False)) == ([sha256], "")
    inode = store.path(sha256).stat().st_ino
    tree = arrive(store)
    assert store.add([("again", tree)]) == {"again": sha256}
    assert store.path(sha256).stat().st_ino == inode
    assert not tree.exists()


def chain_of_links(*links: tuple[str, str]) -> Callable[[Path], object]:
    """Return what makes links, each of which is harmless alone."""

    def make(tree: Path) -> None:
        for directory in ("deep/er", "top"):
            (tree / directory).mkdir(parents=True)
        for name, target in links:
            (tree / name).symlink_to(target)

    return make


@pytest.mark.parametrize(
    "harm",
    [
        lambda tree: (tree / "out").symlink_to("../../../etc/passwd"),
        lambda tree: (tree / "out").symlink_to("/etc/passwd"),
        lambda tree: os.mkfifo(tree / "fifo"),
        lambda tree: (tree / "a\nb").touch(),
        lambda tree: (tree / "\u202egnp.sh").touch(),
        lambda tree: plant(tree / ".git", {"config": b""}),
        lambda tree: plant(tree / "sub/.GIT", {"config": b""}),
        chain_of_links(("up", "."), ("out", "up/../../secret")),
        chain_of_links(("deep/er/d", "../../top"), ("deep/er/x", "d/../../../secret")),
        chain_of_links(("deep/er/d", "../../top"), ("deep/er/x", "d/../../secret")),
    ],
)
def test_one_unsafe_tree_prevents_storing_all(store: Store, harm: Callable[[Path], object]) -> None:
    staging = store.staging()
    good, bad = plant(staging / "good", FILES), plant(staging / "bad", {"README": b"bad"})
    harm(bad)
    with pytest.raises(IntegrityError, match="bad"):
        store.add([("good", good), ("bad", bad)])
    assert store.digests() == []


def test_no_tree_is_stored_before_all_have_arrived(store: Store) -> None:
    staging = store.staging()
    seen: list[list[str]] = []

    def arrivals() -> Iterator[tuple[str, Path]]:
        for name in ("a", "b"):
            seen.append(store.digests())
            yield name, plant(staging / name, {"name": name.encode()})
        seen.append(store.digests())

    found = store.add(arrivals())
    assert seen == [[], [], []]
    assert store.digests() == sorted(found.values())


def edit(path: Path) -> None:
    (path / "README").chmod(0o644)
    (path / "README").write_bytes(b"edited")
    (path / "README").chmod(0o444)


@pytest.mark.parametrize(
    "harm",
    [
        edit,
        lambda path: (path / "README").unlink(),
        lambda path: (path / "more").touch(),
        lambda path: (path / "README").rename(path / "readme"),
        lambda path: (path / "README").chmod(0o555),
    ],
    ids=["edited", "file gone", "file more", "renamed", "mode"],
)
def test_a_damaged_tree_is_quarantined(store: Store, harm: Callable[[Path], object]) -> None:
    sha256 = add(store)
    harm(store.path(sha256))
    assert store.problem(sha256, full=False) == "was changed (names, sizes, times or modes)"
    assert store.problem(sha256, full=True).startswith("has the digest ")
    assert not store.sound(sha256)
    assert (store.has(sha256), store.digests()) == (False, [])
    (aside,) = (store.objects.parent / "quarantine").iterdir()
    assert aside.name.startswith(f"{sha256}-")
    assert add(store) == sha256
    assert store.sound(sha256)


def test_an_edit_that_keeps_size_and_times_is_detected_by_the_digest(store: Store) -> None:
    sha256 = add(store)
    file = store.path(sha256) / "manifests/init.pp"
    status = file.stat()
    file.chmod(0o644)
    file.write_bytes(b"class b {}\n")
    file.chmod(0o444)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert store.problem(sha256, full=False) == ""
    assert store.problem(sha256, full=True).startswith("has the digest ")


def test_a_tree_with_changed_times_only_is_verified(store: Store) -> None:
    sha256 = add(store)
    os.utime(store.path(sha256) / "README", (1, 1))
    assert store.problem(sha256, full=False) != ""
    assert store.problem(sha256, full=True) == ""
    assert store.sound(sha256)
    assert store.has(sha256)


@pytest.mark.parametrize(
    "lose",
    [
        lambda _tree, index: index.unlink(),
        lambda tree, _index: shutil.rmtree(tree),
        lambda tree, index: (
            index.unlink(),
            (tree / "README").chmod(0o644),
            (tree / "README").write_bytes(b"edited"),
        ),
    ],
    ids=["no index", "no tree", "edited without an index"],
)
def test_an_incomplete_tree_is_missing(store: Store, lose: Callable[[Path, Path], object]) -> None:
    sha256 = add(store)
    lose(store.path(sha256), store.objects.parent / "index" / sha256)
    assert (store.has(sha256), store.sound(sha256)) == (False, False)
    assert "is missing" in store.problem(sha256, full=False)
    assert add(store) == sha256
    assert store.problem(sha256, full=True) == ""
    assert (store.path(sha256) / "README").read_bytes() == FILES["README"]


def test_removing_a_tree_removes_its_index_entry(store: Store) -> None:
    sha256, other = add(store), add(store, {"a": b"b"})
    store.remove(sha256)
    store.remove(sha256)  # removing a missing tree is not an error
    assert (store.has(sha256), store.digests()) == (False, [other])
    assert [path.name for path in (store.objects.parent / "index").iterdir()] == [other]


def test_a_new_staging_directory_removes_old_ones(store: Store) -> None:
    old = arrive(store).parent
    new = store.staging()
    assert (old.exists(), list(new.iterdir())) == (False, [])
    assert list(new.parent.iterdir()) == [new]


def test_a_file_at_the_size_of_one_read_is_read_completely(tmp_path: Path) -> None:
    for size in (1024 * 1024 - 1, 1024 * 1024, 1024 * 1024 + 1):
        data = os.urandom(size)
        tree = plant(tmp_path / str(size), {"a": data})
        line = f"F {hashlib.sha256(data).hexdigest()} a\n".encode()
        assert tree_digest(tree, where="a") == hashlib.sha256(line).hexdigest()


def test_the_weight_of_a_tree_stays_after_verification(store: Store) -> None:
    sha256 = add(store)
    counted = store.weight(sha256)
    assert counted[1] > 0
    assert store.sound(sha256)
    assert store.weight(sha256) == counted
    store.remove(sha256)
    with pytest.raises(StateError):
        store.weight(sha256)
