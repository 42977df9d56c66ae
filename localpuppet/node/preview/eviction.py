"""Keeps the file of a preview's cache within its limit: removes the oldest entries, then the rest.

What no entry uses is removed only then: sharing makes it cheap to keep, and expensive to look for.
"""

from collections.abc import Iterable
from contextlib import suppress

from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.machine.sqlite import sqlite3
from localpuppet.node.preview.cache_file import MALFORMED, DamagedEntryError, today, unpack
from localpuppet.node.preview.catalog_items import DIGEST_BYTES
from localpuppet.node.preview.catalog_store import read_blob, shared_numbers

# The file is emptied to this part of its limit.
_AFTER = 0.75
# Entries that go at a time: this part of all.
_SHARE = 8
# Days that the states of a tree stay.
_TREES = 30


def evict(connection: sqlite3.Connection, *, limit: int) -> None:
    """Remove the oldest entries if the file exceeds its limit, within a transaction.

    Args:
        connection: The file.
        limit: Bytes that it may use.
    """
    if _used(connection) <= limit:
        return
    connection.execute("DELETE FROM trees WHERE day < ?", (today() - _TREES,))
    _sweep(connection)
    while _used(connection) > limit * _AFTER:
        (count,) = connection.execute("SELECT count(*) FROM entries").fetchone()
        if not count:
            connection.execute("DELETE FROM trees")
            return
        connection.execute(
            "DELETE FROM entries WHERE id IN"
            " (SELECT id FROM entries ORDER BY day, id LIMIT max(1, ?))",
            (count // _SHARE,),
        )
        _sweep(connection)


def _used(connection: sqlite3.Connection) -> int:
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _sweep(connection: sqlite3.Connection) -> None:
    """Remove what no entry uses."""
    connection.execute("DELETE FROM catalogs WHERE digest NOT IN (SELECT catalog FROM entries)")
    _only(connection, "items", "id", _items(connection))
    _only(connection, "blobs", "digest", _blobs(connection))


def _only(
    connection: sqlite3.Connection, table: str, column: str, used: Iterable[int | bytes]
) -> None:
    connection.execute("CREATE TEMP TABLE used (name PRIMARY KEY) WITHOUT ROWID")
    connection.executemany("INSERT OR IGNORE INTO temp.used VALUES (?)", ((name,) for name in used))
    connection.execute(
        f"DELETE FROM {table} WHERE {column} NOT IN (SELECT name FROM temp.used)"  # noqa: S608
    )
    connection.execute("DROP TABLE temp.used")


def _items(connection: sqlite3.Connection) -> Iterable[int]:
    for (data,) in connection.execute("SELECT shared FROM catalogs"):
        with suppress(DamagedEntryError):
            yield from shared_numbers(data)


def _blobs(connection: sqlite3.Connection) -> Iterable[bytes]:
    yield from (row[0] for row in connection.execute("SELECT head FROM catalogs"))
    lists, parts, keys = set(), set(), set()
    for (body,) in connection.execute("SELECT body FROM entries"):
        with suppress(*MALFORMED):
            _, paths, listed, own, _ = loads_again(unpack(body))
            yield bytes.fromhex(paths)
            lists.add(bytes.fromhex(listed))
            keys |= {part["keys"] for part in own}
    for listed in lists:
        yield listed
        with suppress(DamagedEntryError):
            data = read_blob(connection, listed)
            parts |= {data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES)}
    for part in parts:
        yield part
        with suppress(*MALFORMED):
            keys.add(loads_again(read_blob(connection, part))["keys"])
    for name in keys - {None}:
        with suppress(*MALFORMED):
            yield bytes.fromhex(name)
