"""Serve the network side's `KeyValue` to the run side, as lines of JSON.

The run side has no network connection and no credentials for the bus. It passes what it writes
there (signed triggers of Puppet, leases) to this proxy; `bus.proxy.store` is the client. This
module has the format of the lines; any other line raises `InvalidInputError`.

Whatever a line contains, the answer is in this format; an error is a line with `ok` false and one
printable line of text.
"""

import base64
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.text import one_line
from localpuppet.fleet.bus.key_value import (
    Change,
    FullError,
    KeyListing,
    KeyRemoval,
    KeyValue,
    KeyValueEntry,
    RefusedError,
)

# A value of 512 KiB takes 683 KiB here.
MAX_LINE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProxyServer:
    """Executes the run side's calls to the bus.

    Attributes:
        store: Returns a connected store for the name of an engine; `None` means the site's.
    """

    store: Callable[[str | None], AbstractAsyncContextManager[KeyValue]]

    async def answer(self, line: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the answer to a line, as lines."""
        try:
            fields = read(line)
            lent = self.store(fields.text_or_none("engine"))
            async with lent as kv, aclosing(_change_lines(kv, fields)) as lines:
                async for received in lines:
                    yield encode(received)
        except LocalpuppetError as error:
            yield encode(
                {
                    "ok": False,
                    "unreachable": isinstance(error, UnavailableError),
                    "refused": isinstance(error, RefusedError),
                    "full": isinstance(error, FullError),
                    "error": one_line(str(error)),
                }
            )


async def _change_lines(kv: KeyValue, fields: Fields) -> AsyncGenerator[dict[str, Any], None]:
    if fields.text("verb") == "watch":
        yield {"ok": True, "watching": True}  # at once: the first change may take long
        changes = kv.watch(
            fields.text("prefix"),
            after=fields.integer_or_none("after"),
            largest=fields.integer("largest"),
            parts=fields.boolean("parts"),
        )
        async with aclosing(changes):
            async for change in changes:
                for line in change_lines(change):
                    yield line
    elif fields.text("verb") == "list":
        listing = await kv.list(fields.text("prefix"), largest=fields.integer("largest"))
        for line in change_lines(listing):
            yield line
    elif fields.text("verb") == "born":
        yield {"ok": True, "born": await kv.born(fields.text("prefix")) or None}
    else:
        yield await _do(kv, fields)


async def _do(kv: KeyValue, fields: Fields) -> dict[str, Any]:
    verb, key = fields.text("verb"), fields.text("key")
    if verb == "get":
        entry = await kv.get(key)
        return {"ok": True, "entry": None if entry is None else entry_to_dict(entry)}
    if verb == "remove_if_revision":
        return {"ok": True, "done": await kv.remove_if_revision(key, fields.integer("revision"))}
    value, ttl = fields.parsed("value", _bytes), fields.seconds_or_none("ttl")
    if verb == "put":
        return {"ok": True, "revision": await kv.put(key, value, ttl=ttl)}
    if verb == "add_if_new":
        return {"ok": True, "revision": await kv.add_if_new(key, value, ttl=ttl)}
    if verb == "set_if_revision":
        before = fields.integer("revision")
        return {"ok": True, "revision": await kv.set_if_revision(key, value, before, ttl=ttl)}
    raise InvalidInputError(f"the verb {verb[:40]!r} is unknown", where="relay")


def change_lines(change: Change) -> list[dict[str, Any]]:
    """Return the lines of a change: a listing is a head and one line for each entry."""
    if isinstance(change, KeyListing):
        count = len(change.entries)
        head = {"ok": True, "listing": change.revision, "count": count, "more": change.more}
        return [head, *({"ok": True, "put": entry_to_dict(entry)} for entry in change.entries)]
    if isinstance(change, KeyRemoval):
        return [{"ok": True, "removed": change.key, "revision": change.revision}]
    return [{"ok": True, "put": entry_to_dict(change.entry)}]


def entry_to_dict(entry: KeyValueEntry) -> dict[str, Any]:
    """Return an entry in the form of a line."""
    value = base64.b64encode(entry.value).decode("ascii")
    return {"key": entry.key, "value": value, "revision": entry.revision}


def encode(value: Mapping[str, Any]) -> bytes:
    """Return a line, with its newline."""
    return json.dumps(value).encode() + b"\n"


def entry_from(fields: Fields) -> KeyValueEntry:
    """Return the entry in a line."""
    return KeyValueEntry(
        key=fields.text("key"),
        value=fields.parsed("value", _bytes),
        revision=fields.integer("revision"),
    )


def read(line: bytes) -> Fields:
    """Return the fields of a line."""
    return Fields.parse(line, where="relay", limit=MAX_LINE)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except ValueError as error:
        raise InvalidInputError("is not base64") from error
