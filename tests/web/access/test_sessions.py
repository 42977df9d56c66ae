"""Links that are good once, and cookies."""

from pathlib import Path

import pytest

from localpuppet.web.access.http_limits import MAX_SESSIONS
from localpuppet.web.access.loopback import LINK_LIFE, SESSION_LIFE, Sessions, kept_host_name
from tests.doubles.ports import FakeClock


def made() -> tuple[Sessions, FakeClock]:
    clock = FakeClock()
    return Sessions(clock.monotonic), clock


def entered(sessions: Sessions) -> str:
    cookie = sessions.enter(sessions.link())
    assert cookie is not None
    return cookie


def test_a_link_is_good_once() -> None:
    sessions, _ = made()
    link = sessions.link()
    cookie = sessions.enter(link)
    assert cookie is not None
    assert sessions.knows(cookie)
    assert sessions.enter(link) is None
    assert sessions.enter("") is None
    assert not sessions.knows("")
    assert not sessions.knows(link)


def test_before_a_link_exists_no_key_is_valid() -> None:
    sessions, _ = made()
    assert sessions.enter("") is None
    assert sessions.enter("\ud800") is None


def test_a_late_link_is_used_up() -> None:
    sessions, clock = made()
    link = sessions.link()
    clock.advance(LINK_LIFE)
    assert sessions.enter(link) is None


def test_a_wrong_guess_does_not_use_up_the_link() -> None:
    sessions, _ = made()
    link = sessions.link()
    assert sessions.enter("guess") is None
    assert sessions.enter(link) is not None


def test_a_session_ends_and_the_oldest_makes_room() -> None:
    sessions, clock = made()
    first = entered(sessions)
    others = [entered(sessions) for _ in range(MAX_SESSIONS)]
    assert not sessions.knows(first)
    assert all(map(sessions.knows, others))
    clock.advance(SESSION_LIFE)
    assert not any(map(sessions.knows, others))


def test_a_host_name_is_kept_in_a_file_that_only_its_user_can_read(tmp_path: Path) -> None:
    file, other = tmp_path / "web" / "host-name", tmp_path / "other" / "host-name"
    name = kept_host_name(file)
    assert (len(name), kept_host_name(file)) == (32, name)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert kept_host_name(other) != name


@pytest.mark.parametrize("text", ["", "localhost", "A" * 32, "0" * 33, "\udc80" * 32])
def test_a_file_with_another_text_gets_a_new_host_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "host-name"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    file.chmod(0o600)
    name = kept_host_name(file)
    assert file.read_text() == f"{name}\n"


def test_a_host_name_that_others_could_read_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "host-name"
    name = kept_host_name(file)
    file.chmod(0o644)
    assert kept_host_name(file) != name
    assert file.stat().st_mode & 0o777 == 0o600
