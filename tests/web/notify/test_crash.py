"""A notifier that is killed at any write loses no message, and repeats one only with its id."""

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from localpuppet.web.notify.notice_ledger import FILE
from tests.rigs.crash_points import crash_points, run_under_strace
from tests.web.notify.one_notifier import EVENTS
from tests.web.notify.one_write import WRITES, ledger_of, prepare
from tests.web.notify.receivers import SECRET, Receiver, secret_file

# What SQLite and sockets do; how many of each are tried with the tests.
CALLS = {"pwrite64": 2, "fdatasync": 2, "sendto": 2}


def attempt(directory: Path, url: str, *strace: str) -> tuple[int, str]:
    """Let a notifier look under strace; return its exit code and the trace."""
    directory.mkdir(exist_ok=True)
    secret_file(directory, "url", url)
    secret_file(directory, "secret", SECRET)
    trace = directory / "trace"
    module = "tests.web.notify.one_notifier"
    done = run_under_strace(trace, *strace, module=module, arguments=(str(directory),))
    return done.returncode, trace.read_text()


def messages(receiver: Receiver) -> dict[str, str]:
    """Return the messages by id, in the order in which each came first."""
    found: dict[str, str] = {}
    for one in receiver.received:
        subjects = [it["title"].split()[-1] for it in one.json["incidents"]]
        text = " ".join([one.json["event"], *subjects])
        assert found.setdefault(one.headers["webhook-id"], text) == text
    return found


def test_a_kill_at_any_write_neither_loses_nor_repeats_a_message(tmp_path: Path) -> None:
    with Receiver() as receiver:
        calls = ",".join(CALLS)
        code, text = attempt(tmp_path / "whole", receiver.url, "-e", f"trace={calls}")
        assert code == 0
        assert [*messages(receiver).values()] == EVENTS
        killed = 0
        for call, tries in CALLS.items():
            total = len(re.findall(rf"\b{call}\(", text))
            assert total >= tries, (call, total)
            for number in crash_points(total, tries):
                receiver.received.clear()
                directory = tmp_path / f"{call}{number}"
                kill = f"inject={call}:signal=KILL:when={number}"
                code, _ = attempt(directory, receiver.url, "-e", kill)
                killed += code == -9
                before = messages(receiver)
                code, _ = attempt(directory, receiver.url, "-e", "trace=none")
                assert code == 0
                both = messages(receiver)
                assert [*both.values()] == EVENTS, (call, number, before)
                # Only a message that was under way is sent again.
                assert len(receiver.received) - len(both) <= 1
                shutil.rmtree(directory)
        assert killed >= sum(CALLS.values()) - 1


def content(directory: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return all rows of a ledger, by table."""
    with closing(sqlite3.connect(directory / FILE)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for (name,) in names}  # noqa: S608


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITES)
def test_a_kill_leaves_the_ledger_as_before_or_after_each_write(tmp_path: Path, name: str) -> None:
    start, whole = tmp_path / "start", tmp_path / "whole"
    prepare(start)
    before = content(start)
    shutil.copytree(start, whole)
    trace, module = tmp_path / "trace", "tests.web.notify.one_write"
    calls = {"pwrite64": 2, "fdatasync": 1}

    def write(directory: Path, *strace: str) -> int:
        done = run_under_strace(trace, *strace, module=module, arguments=(str(directory), name))
        return done.returncode

    assert write(whole, "-e", f"trace={','.join(calls)}") == 0
    text, after = trace.read_text(), content(whole)
    assert after != before
    for call, tries in calls.items():
        for number in crash_points(len(re.findall(rf"\b{call}\(", text)), tries):
            directory = tmp_path / f"{call}{number}"
            shutil.copytree(start, directory)
            assert write(directory, "-e", f"inject={call}:signal=KILL:when={number}") == -9
            left = content(directory)
            assert left in (before, after), (call, number)
            if left == before:  # the next look does the same again
                ledger = ledger_of(directory)
                WRITES[name](ledger)
                ledger.close()
                assert content(directory) == after
