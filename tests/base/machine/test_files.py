"""Files that users write: localpuppet refuses unsafe ones before it uses their content."""

import errno
import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.machine.anchors import open_anchor, tls_context
from localpuppet.base.machine.files import (
    ReloadedFiles,
    disk_errors,
    half_written,
    input_errors,
    is_file,
    list_names,
    publish,
    remove_half_written,
)
from localpuppet.base.machine.flock import Flock
from localpuppet.node.enc.input import Https
from tests.rigs.tls import Authority

OTHER = 12345  # a user id that is neither root's nor Puppet's


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def spoil_group(path: Path) -> None:
    path.chmod(0o664)
    os.chown(path, 0, OTHER)


def spoil_kind(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def spoil_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


SPOILED = [
    pytest.param(lambda path: path.chmod(0o666), "is writable by others", id="mode"),
    pytest.param(spoil_group, "is writable by others", id="group"),
    pytest.param(lambda path: os.chown(path, OTHER, 0), "is writable by others", id="owner"),
    pytest.param(spoil_kind, "is not a regular file", id="fifo"),
    pytest.param(spoil_link, "file not found", id="dangling"),
]


@pytest.mark.parametrize("file", ["ca", "certificate", "key"])
@pytest.mark.parametrize(("spoil", "message"), SPOILED)
def test_the_tls_files_of_the_bus_are_refused_as_settings_are(
    authority: Authority, file: str, spoil: Callable[[Path], None], message: str
) -> None:
    own = authority.node("web01.example.com")
    files = {"ca": authority.path, "certificate": own.certificate, "key": own.key}
    assert tls_context(*files.values()).verify_mode == ssl.CERT_REQUIRED
    spoil(files[file])
    with pytest.raises(InvalidInputError, match=message) as caught:
        tls_context(*files.values())
    assert str(caught.value).startswith(f"{files[file]}: ")


@pytest.mark.parametrize(("spoil", "message"), SPOILED)
def test_the_file_of_https_ca_is_refused_as_settings_are(
    authority: Authority, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(authority.path)
    https = Https(ca=authority.path, timeout=5)
    with pytest.raises(InvalidInputError, match=message) as caught:
        https.get("https://localhost:1/input.yaml", limit=1024)
    assert str(caught.value).startswith(f"{authority.path}: ")


def test_an_error_names_a_tls_file_with_other_content(authority: Authority) -> None:
    own = authority.node("web01.example.com")
    other = authority.node("web02.example.com")
    with pytest.raises(InvalidInputError, match=r"web01\.example\.com\.pem: cannot be used for"):
        tls_context(authority.path, own.certificate, other.key)
    authority.path.write_text("nothing")
    with pytest.raises(InvalidInputError, match=r"ca\.pem: cannot be used for TLS"):
        tls_context(authority.path, None, None)


def test_the_file_that_was_checked_is_the_file_that_is_used(authority: Authority) -> None:
    path = authority.path
    with open_anchor(path) as file:
        path.unlink()
        path.write_text("another file of the same name")
        assert file.read() == Path(f"/proc/self/fd/{file.fileno()}").read_bytes()


def test_an_optional_file_exists_or_is_missing_and_all_else_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "hiera.yaml"
    assert not is_file(path)
    path.write_text("")
    assert is_file(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert is_file(link)
    path.unlink()
    with pytest.raises(InvalidInputError, match="link: is a broken link"):
        is_file(link)
    link.unlink()
    link.symlink_to("link")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        is_file(link)
    os.mkfifo(path)
    with pytest.raises(InvalidInputError, match=r"hiera\.yaml: is not a regular file"):
        is_file(path)


def test_an_optional_file_below_a_dangling_link_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "manifests").symlink_to("nowhere")
    with pytest.raises(InvalidInputError, match="manifests: is a broken link"):
        is_file(tmp_path / "manifests" / "default.pp")
    assert not is_file(tmp_path / "none" / "default.pp")


def test_only_half_written_copies_of_a_file_are_listed(tmp_path: Path) -> None:
    others = ("tags.json", ".tags.json", ".tags.json.1.0123456789ab", ".tagsXjson.0123456789ab")
    left = tmp_path / ".tags.json.0123456789ab"
    for other in (left, *(tmp_path / name for name in others)):
        other.touch()
    assert half_written(tmp_path / "tags.json") == [left]


def test_only_old_temporary_files_are_removed_from_a_directory(tmp_path: Path) -> None:
    old, young = tmp_path / ".a.json.0123456789ab", tmp_path / ".b.json.0123456789ab"
    kept = [tmp_path / name for name in ("a.json", ".hidden", ".a.json.new", ".c.0123456789abc")]
    for path in (old, young, *kept):
        path.touch()
    link, directory = tmp_path / ".l.0123456789ab", tmp_path / ".d.0123456789ab"
    link.symlink_to(young)
    directory.mkdir()
    os.utime(old, (0, 0))
    remove_half_written(tmp_path, seconds=3600)
    assert set(tmp_path.iterdir()) == {young, link, directory, *kept}
    remove_half_written(tmp_path)
    assert set(tmp_path.iterdir()) == {link, directory, *kept}
    remove_half_written(tmp_path / "missing")


def test_a_copy_into_a_users_directory_follows_no_planted_link(tmp_path: Path) -> None:
    mine = tmp_path / "root's"
    mine.write_text("root's own")
    directory = tmp_path / "another user's"
    directory.mkdir()
    source = tmp_path / "pack"
    source.write_bytes(b"pack" * 1024 * 1024)
    for name in (f".r1.pack.{os.getpid()}", "r1.pack"):
        (directory / name).symlink_to(mine)
    publish(source, directory / "r1.pack", mode=0o644)
    assert mine.read_text() == "root's own"
    assert not (directory / "r1.pack").is_symlink()
    assert (directory / "r1.pack").read_bytes() == source.read_bytes()
    assert (directory / "r1.pack").stat().st_mode & 0o777 == 0o644
    assert not half_written(directory / "r1.pack")


def test_a_copy_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "directory"
    target.mkdir()
    (target / "file").touch()
    source = tmp_path / "pack"
    source.touch()
    with pytest.raises(StateError):
        publish(source, target, mode=0o644)
    assert not half_written(target)


def test_a_lock_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "made")
    with pytest.raises(StateError):
        Flock.take(tmp_path / "lock")
    assert not (tmp_path / "made").exists()


def test_a_disk_error_becomes_a_state_error_with_path_and_cure(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(StateError) as caught, disk_errors(tmp_path):
        raise full
    cure = "free some space and run the command again"
    assert str(caught.value) == f"{tmp_path}: No space left on device ({cure})"
    assert caught.value.__cause__ is full


def test_an_input_error_becomes_an_invalid_input_error_with_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as caught, input_errors(tmp_path):
        tmp_path.read_bytes()
    assert str(caught.value) == f"{tmp_path}: cannot be read: Is a directory"


def test_only_a_directory_lists_names(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert list_names(file) == []
    file.touch()
    assert list_names(tmp_path) == ["file"]
    with pytest.raises(StateError) as caught:
        list_names(file)
    assert str(caught.value) == f"{file}: Not a directory"


def test_a_value_is_built_again_only_when_a_file_has_changed(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("a")
    other.write_text("b")
    made: list[str] = []

    def make() -> str:
        made.append(one.read_text() + other.read_text())
        return made[-1]

    found = ReloadedFiles([one, other], make)
    assert [found(), found()] == ["ab", "ab"]
    other.write_text("changed")
    assert found() == "achanged"
    assert made == ["ab", "achanged"]


def test_a_value_of_a_removed_file_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("a")
    found = ReloadedFiles([file], file.read_text)
    assert found() == "a"
    file.unlink()
    with pytest.raises(InvalidInputError, match="cannot be read"):
        found()


def test_a_build_that_failed_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("12")
    answers = iter([ValueError("half written"), None])

    def make() -> int:
        answer = next(answers)
        if answer is not None:
            raise answer
        return int(file.read_text())

    found = ReloadedFiles([file], make)
    with pytest.raises(ValueError, match="half written"):
        found()
    assert found() == 12
