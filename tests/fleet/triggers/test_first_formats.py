"""Memories of messages in their first format: an update makes no message new."""

import sqlite3
from contextlib import closing
from pathlib import Path

from localpuppet.fleet.trust.seen import SeenIds
from tests.doubles.ports import FakeClock

FIRST_SEEN = """
CREATE TABLE seen (
    kind TEXT NOT NULL, id TEXT NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX until ON seen (until);
INSERT INTO seen VALUES ('request', 'alice 1', 2000000000), ('request', 'bob 2', 2000000000);
PRAGMA user_version = 1;
"""


def make(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def test_ids_of_the_first_format_are_still_known(tmp_path: Path) -> None:
    """An update must not make requests and triggers new that were taken before it."""
    make(tmp_path / "seen.sqlite", FIRST_SEEN)
    for _ in range(2):
        with closing(SeenIds(tmp_path / "seen.sqlite", FakeClock())) as seen:
            assert not seen.add("alice", "1", 2_000_000_000)
            assert not seen.add("bob", "2", 2_000_000_000)
