"""Root opens a database only in a directory where no other user can replace it."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.fleet.bus.sqlite_file import SqliteFile, other_owner

OTHER = pwd.getpwnam("daemon").pw_uid
# Alternates a file and a link at a name, as fast as it can, in a separate process of another user.
RACER = """
import os, sys
name, target = sys.argv[1:]
print("racing", flush=True)
while True:
    for make in (lambda: os.close(os.open(name, os.O_CREAT)), lambda: os.symlink(target, name)):
        make()
        os.unlink(name)
"""
TRIES = 300


def given(path: Path) -> Path:
    """Make a directory of another user."""
    path.mkdir(parents=True)
    os.chown(path, OTHER, OTHER)
    return path


def test_root_opens_a_database_in_its_own_directories(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "link").symlink_to("own/../own")
    for directory in (tmp_path, tmp_path / "own", tmp_path / "link", tmp_path / "not/there"):
        assert other_owner(directory) is None
    SqliteFile(tmp_path / "link" / "bus.sqlite").close()
    assert (tmp_path / "own" / "bus.sqlite").exists()


@pytest.mark.parametrize("below", ["", "own", "own/not/there"])
def test_root_opens_no_database_below_another_user_s_directory(tmp_path: Path, below: str) -> None:
    directory = given(tmp_path / "theirs") / below
    (tmp_path / "theirs" / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(directory)
    for name in (directory, tmp_path / "link"):
        assert other_owner(name) == OTHER
        with pytest.raises(InvalidInputError, match=f"user id {OTHER} can replace this file"):
            SqliteFile(name / "bus.sqlite")
    assert [path.name for path in (tmp_path / "theirs").rglob("*")] == ["own"]


def test_a_way_through_another_user_s_link_is_theirs(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    link = tmp_path / "link"
    link.symlink_to("own")
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    assert other_owner(link) == OTHER
    # Also a path that leads there over a link of root.
    (tmp_path / "second").symlink_to(link)
    assert other_owner(tmp_path / "second") == OTHER


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UnavailableError, match="too many symlinks"):
        other_owner(tmp_path / "a")


@pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o775, True), (0o1777, False)])
def test_a_directory_on_the_way_that_others_can_write(
    tmp_path: Path, mode: int, refused: bool
) -> None:
    (tmp_path / "open" / "own").mkdir(parents=True)
    (tmp_path / "open").chmod(mode)
    if not refused:
        assert other_owner(tmp_path / "open" / "own") is None
        return
    with pytest.raises(InvalidInputError, match=f"open: can be written by others .mode {mode:04o}"):
        other_owner(tmp_path / "open" / "own")


def test_the_user_behind_sudo_is_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = given(tmp_path / "theirs")
    monkeypatch.setenv("SUDO_UID", str(OTHER))
    assert other_owner(theirs) is None


def test_a_file_that_was_left_in_a_directory_of_root_s(tmp_path: Path) -> None:
    file = tmp_path / "bus.sqlite"
    SqliteFile(file).close()
    os.chown(file, OTHER, OTHER)
    with pytest.raises(InvalidInputError, match=f"belongs to user id {OTHER}"):
        SqliteFile(file)


@pytest.fixture
def entered() -> Iterator[Path]:
    """A directory that other users may enter; pytest's own are root's alone."""
    top = Path(tempfile.mkdtemp(prefix="lp-", dir="/tmp"))
    top.chmod(0o755)
    yield top
    shutil.rmtree(top)


def test_no_race_of_file_and_link_has_root_make_a_database(entered: Path) -> None:
    name = given(entered / "theirs") / "bus.sqlite"
    target = entered / "database"
    with subprocess.Popen(
        [sys.executable, "-c", RACER, str(name), str(target)],
        user=OTHER,
        group=OTHER,
        stdout=subprocess.PIPE,
    ) as racer:
        assert racer.stdout is not None
        assert racer.stdout.readline() == b"racing\n"
        for _ in range(TRIES):
            with pytest.raises(InvalidInputError, match="root does not open it"):
                SqliteFile(name)
        assert racer.poll() is None
        racer.kill()
    assert not target.exists()
