"""The content store: trees are complete under their digest, or not there."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from localpuppet.base.errors import BusyError, IntegrityError, StateError
from localpuppet.node.releases.store import Store, tree_digest
from tests.rigs.staged import tree_of

FILES = {"manifests/init.pp": b"class a {}\n", "files/empty": b"", "README": b"x" * 3_000_000}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "var")


def arrive(store: Store, files: Mapping[str, bytes] = FILES) -> Path:
    """Return a tree on its way in."""
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


def test_a_tree_is_found_under_the_digest_of_its_bytes(store: Store) -> None:
    sha256 = add(store)
    assert sha256 == tree_of(FILES)
    assert (store.has(sha256), store.sound(sha256), store.digests()) == (True, True, [sha256])
    assert store.problem(sha256, full=True) == ""
    path = store.path(sha256)
    assert {name: (path / name).read_bytes() for name in FILES} == FILES
    assert tree_digest(path, where="a") == sha256


def test_a_store_that_is_not_there_has_nothing(store: Store) -> None:
    assert (store.digests(), store.has("a" * 64), store.sound("a" * 64)) == ([], False, False)
    assert store.problem("a" * 64, full=False) == "is missing or incomplete"


def test_the_digest_tells_names_kinds_bytes_and_links_apart(store: Store, tmp_path: Path) -> None:
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


def test_what_does_not_matter_does_not_change_the_digest(tmp_path: Path) -> None:
    one, other = plant(tmp_path / "1", FILES), plant(tmp_path / "2", dict(reversed(FILES.items())))
    (other / "README").chmod(0o600)
    os.utime(other / "README", (1, 1))
    (other / "an empty directory").mkdir()
    assert tree_digest(one, where="1") == tree_digest(other, where="2")


def test_stored_files_are_read_only_and_executable_ones_stay_so(store: Store) -> None:
    tree = arrive(store, {"run.sh": b"#!/bin/sh\n", "data": b""})
    (tree / "run.sh").chmod(0o4711)
    sha256 = store.add([("a", tree)])["a"]
    modes = {path.name: path.stat().st_mode & 0o7777 for path in store.path(sha256).iterdir()}
    assert modes == {"run.sh": 0o555, "data": 0o444}


def test_a_tree_that_is_here_already_is_not_written_again(store: Store) -> None:
    sha256 = add(store)
    inode = store.path(sha256).stat().st_ino
    tree = arrive(store)
    assert store.add([("again", tree)]) == {"again": sha256}
    assert store.path(sha256).stat().st_ino == inode
    assert not tree.exists()


def test_two_trees_with_the_same_bytes_become_one(store: Store) -> None:
    staging = store.staging()
    trees = [(name, plant(staging / name, FILES)) for name in ("a", "b")]
    sha256 = tree_of(FILES)
    assert store.add(trees) == {"a": sha256, "b": sha256}
    assert (store.digests(), store.problem(sha256, full=False)) == ([sha256], "")


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
        lambda tree: (
            (tree / "up").symlink_to("."),
            (tree / "out").symlink_to("up/../../secret"),
        ),
    ],
)
def test_what_must_not_be_in_a_tree_keeps_all_that_came_with_it_out(
    store: Store, harm: Callable[[Path], object]
) -> None:
    staging = store.staging()
    good, bad = plant(staging / "good", FILES), plant(staging / "bad", {"README": b"bad"})
    harm(bad)
    with pytest.raises(IntegrityError, match="bad"):
        store.add([("good", good), ("bad", bad)])
    assert store.digests() == []


def test_nothing_has_a_name_before_all_have_come(store: Store) -> None:
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


def test_a_source_that_fails_in_the_middle_adds_nothing(store: Store) -> None:
    staging = store.staging()

    def arrivals() -> Iterator[tuple[str, Path]]:
        yield "a", plant(staging / "a", FILES)
        raise IntegrityError("the second did not come")

    with pytest.raises(IntegrityError):
        store.add(arrivals())
    assert store.digests() == []


def edit(path: Path) -> None:
    (path / "README").chmod(0o644)
    (path / "README").write_bytes(b"edited")
    (path / "README").chmod(0o444)


HARM: dict[str, Callable[[Path], object]] = {
    "edited": edit,
    "file gone": lambda path: (path / "README").unlink(),
    "file more": lambda path: (path / "more").touch(),
    "renamed": lambda path: (path / "README").rename(path / "readme"),
    "mode": lambda path: (path / "README").chmod(0o555),
}


@pytest.mark.parametrize("name", HARM)
def test_a_damaged_tree_is_put_aside_and_is_not_here_any_more(store: Store, name: str) -> None:
    sha256 = add(store)
    HARM[name](store.path(sha256))
    assert store.problem(sha256, full=False) == "was changed (names, sizes, times or modes)"
    assert store.problem(sha256, full=True).startswith("has the digest ")
    assert not store.sound(sha256)
    assert (store.has(sha256), store.digests()) == (False, [])
    (aside,) = (store.objects.parent / "quarantine").iterdir()
    assert aside.name.startswith(f"{sha256}-")
    assert add(store) == sha256
    assert store.sound(sha256)


def test_an_edit_that_keeps_size_and_times_is_found_by_the_bytes(store: Store) -> None:
    sha256 = add(store)
    file = store.path(sha256) / "manifests/init.pp"
    status = file.stat()
    file.chmod(0o644)
    file.write_bytes(b"class b {}\n")
    file.chmod(0o444)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert store.problem(sha256, full=False) == ""
    assert store.problem(sha256, full=True).startswith("has the digest ")


def test_a_tree_whose_times_alone_were_changed_is_still_whole(store: Store) -> None:
    sha256 = add(store)
    os.utime(store.path(sha256) / "README", (1, 1))
    assert store.problem(sha256, full=False) != ""
    assert store.problem(sha256, full=True) == ""
    assert store.sound(sha256)
    assert store.has(sha256)


@pytest.mark.parametrize("half", ["no index", "no tree"])
def test_half_of_a_tree_is_never_taken_for_a_whole_one(store: Store, half: str) -> None:
    sha256 = add(store)
    index = store.objects.parent / "index" / sha256
    if half == "no index":
        index.unlink()
    else:
        shutil.rmtree(store.path(sha256))
    assert (store.has(sha256), store.sound(sha256)) == (False, False)
    assert "is missing" in store.problem(sha256, full=False)
    assert add(store) == sha256
    assert store.problem(sha256, full=True) == ""


def test_a_tree_that_lost_its_index_entry_is_replaced_and_not_believed(store: Store) -> None:
    sha256 = add(store)
    edit(store.path(sha256))
    (store.objects.parent / "index" / sha256).unlink()
    assert add(store) == sha256
    assert (store.path(sha256) / "README").read_bytes() == FILES["README"]


def test_a_removed_tree_is_gone_with_its_index_entry(store: Store) -> None:
    sha256, other = add(store), add(store, {"a": b"b"})
    store.remove(sha256)
    store.remove(sha256)  # one that is gone is no error
    assert (store.has(sha256), store.digests()) == (False, [other])
    assert [path.name for path in (store.objects.parent / "index").iterdir()] == [other]


def test_a_new_staging_directory_sweeps_the_old_ones_away(store: Store) -> None:
    old = arrive(store).parent
    new = store.staging()
    assert (old.exists(), list(new.iterdir())) == (False, [])
    assert list(new.parent.iterdir()) == [new]


def test_only_one_changes_the_store(store: Store) -> None:
    lock = store.locks.take_for_changes()
    with pytest.raises(BusyError, match="another process changes the store"):
        Store(store.objects.parent).locks.take_for_changes()
    lock.release()
    store.locks.take_for_changes().release()


def test_a_file_of_exactly_one_read_is_read_to_its_end(tmp_path: Path) -> None:
    for size in (1024 * 1024 - 1, 1024 * 1024, 1024 * 1024 + 1):
        data = os.urandom(size)
        tree = plant(tmp_path / str(size), {"a": data})
        line = f"F {hashlib.sha256(data).hexdigest()} a\n".encode()
        assert tree_digest(tree, where="a") == hashlib.sha256(line).hexdigest()


def test_a_weight_is_that_of_the_tree_as_it_was_last_looked_at(store: Store) -> None:
    sha256 = add(store)
    counted = store.weight(sha256)
    assert counted[1] > 0
    assert store.sound(sha256)
    assert store.weight(sha256) == counted
    store.remove(sha256)
    with pytest.raises(StateError):
        store.weight(sha256)
