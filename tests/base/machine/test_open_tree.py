"""No name and no link leads out of an open tree."""

import os
import socket
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.machine.open_tree import OpenTree

SECRET = "secret of the job"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree beside a secret, with links and directories at some depth."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job/token").write_text(SECRET)
    tree = tmp_path / "tree"
    (tree / "a/b/c").mkdir(parents=True)
    (tree / "file").write_text("top")
    (tree / "a/b/c/file").write_text("deep")
    (tree / "a/b/top").symlink_to("../..")
    (tree / "deep").symlink_to("a/b/c")
    return tree


def read(tree: Path, name: str) -> bytes:
    with OpenTree(tree) as opened:
        return opened.read(name, most=100)


@pytest.mark.parametrize(
    ("link", "text"),
    [
        ("link", "file"),
        ("a/b/c/link", "../../../file"),
        ("link", "./a//b/./c/../../../file"),
        ("link", "deep/../../../file"),  # of the directory behind `deep`
        ("a/b/c/link", "../top/file"),
        ("link", "a/b/top/a/b/top/file"),
    ],
)
def test_a_link_inside_of_the_tree_is_followed(tree: Path, link: str, text: str) -> None:
    (tree / link).symlink_to(text)
    assert read(tree, link) == b"top" == (tree / link).read_bytes()


@pytest.mark.parametrize(
    "text",
    [
        "../job/token",
        "./a/../../job/token",
        "a/b/top/../job/token",  # harmless by its words: the directory is a link
        "deep/../../../../job/token",
        "missing/../../job/token",
        "file/../../job/token",
        "../tree/file",
        "..",
        "/etc/passwd",
        "/missing",
        "../" * 60 + "missing",
        "x" * 300 + "/../../job/token",
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_that_leaves_is_refused_whether_it_leads_to_something_or_not(
    tree: Path, text: str, exists: bool
) -> None:
    if not exists:
        (tree.parent / "job/token").unlink()
    (tree / "link").symlink_to(text)
    (tree / "second").symlink_to("link")
    for name in ("link", "second", "a/b/top/link", "a/../link"):
        with OpenTree(tree) as opened, pytest.raises(InvalidInputError, match="leads out"):
            opened.find(name)


@pytest.mark.parametrize("name", ["..", "a/../../job/token", "../tree/file"])
def test_a_name_that_leaves_is_refused(tree: Path, name: str) -> None:
    with OpenTree(tree) as opened, pytest.raises(InvalidInputError, match="leads out"):
        opened.open(name)


def test_an_absolute_name_is_one_below_the_top(tree: Path) -> None:
    assert read(tree, "/file") == b"top"
    with pytest.raises(FileNotFoundError):
        read(tree, str(tree.parent / "job/token"))


def test_what_leads_nowhere_in_the_tree_is_not_found(tree: Path) -> None:
    (tree / "dangling").symlink_to("a/missing/../x")
    (tree / "loop").symlink_to("loop")
    (tree / "long").symlink_to("x" * 300)
    with OpenTree(tree) as opened:
        assert [opened.find(name) for name in ("dangling", "loop", "long", "a/none/x")] == [
            None
        ] * 4


def test_special_files_and_names_are_refused_and_do_not_block(tree: Path) -> None:
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tree / "socket"))
        for name in ("fifo", "a"):
            with pytest.raises(InvalidInputError, match="not a regular file"):
                read(tree, name)
        with pytest.raises(OSError, match="No such device or address"):
            read(tree, "socket")
    for name in ("a\0b", "\ud800"):
        with pytest.raises(InvalidInputError, match="not the name of a file"):
            read(tree, name)


def test_a_directory_that_becomes_a_link_is_not_followed(tree: Path) -> None:
    with OpenTree(tree) as opened:
        (tree / "a").rename(tree / "old")
        (tree / "a").symlink_to("../job")
        with pytest.raises(InvalidInputError, match="leads out"):
            opened.read("a/token", most=100)


def test_a_tree_that_was_moved_and_replaced_is_still_the_same(tree: Path) -> None:
    with OpenTree(tree) as opened:
        tree.rename(tree.parent / "moved")
        tree.symlink_to("job")
        assert opened.read("file", most=100) == b"top"
        with pytest.raises(FileNotFoundError):
            opened.read("token", most=100)


def test_no_descriptor_stays_open(tree: Path) -> None:
    (tree / "out").symlink_to("a/b/c/../../../../job")
    before = len([*Path("/proc/self/fd").iterdir()])
    with OpenTree(tree) as opened:
        for name in ("file", "deep/file", "out", "missing/x", "a\0b"):
            try:
                os.close(opened.open(name))
            except (OSError, InvalidInputError):
                continue
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_a_directory_inside_of_another_is_reached_within_it(tree: Path) -> None:
    (tree / "nodes").symlink_to("../job")
    (tree / "inner").symlink_to("a/b")
    with pytest.raises(InvalidInputError, match="leads out"):
        OpenTree(tree / "nodes", inside=tree)
    with OpenTree(tree / "inner", inside=tree) as opened:
        assert opened.read("c/file", most=100) == b"deep"
    # The same directory by another name, and one that is elsewhere.
    (tree.parent / "other").symlink_to("tree")
    with pytest.raises(InvalidInputError, match="leads out"):
        OpenTree(tree.parent / "other/nodes", inside=tree)
    with OpenTree(tree.parent / "job", inside=tree) as opened:
        assert opened.read("token", most=100) == SECRET.encode()
