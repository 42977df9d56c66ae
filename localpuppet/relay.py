"""The bus, lent by the network side to the run side: what a `KeyValue` does, as lines of JSON.

The run side has no connection to the network and no credentials for it. What it has to write there
(the triggers that Puppet sends, signed; leases) it gives to the network side by this relay, whose
other end is `adapters.relay_kv`. Owns: the form of the lines, and `Relay`, which does what they
say. Refuses to know: what is written, and sockets.

Invariant: whatever a line holds, the answer is lines of the forms below; an error in one is `ok`
false and one printable line.
"""

import base64
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from localpuppet.errors import InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.key_value import Change, Entry, Gone, KeyValue, Listing
from localpuppet.model.strict_json import parse_object
from localpuppet.model.text import one_line
from localpuppet.model.values import Json

# A value of 512 KiB is 683 KiB here.
MAX_LINE = 1024 * 1024


class Relay:
    """Does what the run side asks of the bus.

    Args:
        store: Lends the store of an engine, connected; that of the site for `None`.
    """

    def __init__(
        self, store: Callable[[str | None], AbstractAsyncContextManager[KeyValue]]
    ) -> None:
        self._store = store

    async def answer(self, line: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the answer to a line, as lines."""
        try:
            fields = Fields(parse_object(line, where="relay", limit=MAX_LINE))
            lent = self._store(fields.text_or_none("engine"))
            async with lent as kv, aclosing(_said(kv, fields)) as lines:
                async for said in lines:
                    yield encode(said)
        except LocalpuppetError as error:
            away = isinstance(error, UnavailableError)
            yield encode({"ok": False, "away": away, "error": one_line(str(error))})


async def _said(kv: KeyValue, fields: "Fields") -> AsyncGenerator[dict[str, Any], None]:
    if fields.text("do") == "watch":
        changes = kv.watch(fields.text("prefix"), after=fields.whole_or_none("after"))
        async with aclosing(changes):
            async for change in changes:
                for said in change_lines(change):
                    yield said
    elif fields.text("do") == "list":
        for said in change_lines(await kv.list(fields.text("prefix"))):
            yield said
    else:
        yield await _do(kv, fields)


async def _do(kv: KeyValue, fields: "Fields") -> dict[str, Any]:
    verb, key = fields.text("do"), fields.text("key")
    if verb == "get":
        entry = await kv.get(key)
        return {"ok": True, "entry": None if entry is None else entry_to_dict(entry)}
    if verb == "remove_if_revision":
        return {"ok": True, "done": await kv.remove_if_revision(key, fields.whole("revision"))}
    value, ttl = fields.bytes("value"), fields.seconds("ttl")
    if verb == "put":
        return {"ok": True, "revision": await kv.put(key, value, ttl=ttl)}
    if verb == "add_if_new":
        return {"ok": True, "revision": await kv.add_if_new(key, value, ttl=ttl)}
    if verb == "set_if_revision":
        before = fields.whole("revision")
        return {"ok": True, "revision": await kv.set_if_revision(key, value, before, ttl=ttl)}
    raise InvalidInputError(f"the verb {verb[:40]!r} is unknown", where="relay")


def change_lines(change: Change) -> list[dict[str, Any]]:
    """Return what a watcher is told of a change: a listing is its head and one for each entry."""
    if isinstance(change, Listing):
        head = {"ok": True, "listing": change.revision, "count": len(change.entries)}
        return [head, *({"ok": True, "put": entry_to_dict(entry)} for entry in change.entries)]
    if isinstance(change, Gone):
        return [{"ok": True, "gone": change.key, "revision": change.revision}]
    return [{"ok": True, "put": entry_to_dict(change.entry)}]


def entry_to_dict(entry: Entry) -> dict[str, Any]:
    """Return an entry for a line."""
    value = base64.b64encode(entry.value).decode("ascii")
    return {"key": entry.key, "value": value, "revision": entry.revision}


def encode(value: Mapping[str, Any]) -> bytes:
    """Return a line, with its newline."""
    return json.dumps(value).encode() + b"\n"


class Fields:
    """The fields of a line, each read strictly.

    Every method raises `InvalidInputError` where the field is of another type.
    """

    def __init__(self, raw: Mapping[str, Json]) -> None:
        self._raw = raw

    def has(self, key: str) -> bool:
        """Return whether there is such a field."""
        return key in self._raw

    def flag(self, key: str) -> bool:
        """Return whether a field is `true`."""
        return self._raw.get(key) is True

    def text(self, key: str) -> str:
        """Return a string."""
        value = self._raw.get(key)
        if not isinstance(value, str):
            raise _wrong(key, "a string")
        return value

    def text_or_none(self, key: str) -> str | None:
        """Return a string; `None` where there is none."""
        return None if self._raw.get(key) is None else self.text(key)

    def whole(self, key: str) -> int:
        """Return an integer."""
        value = self._raw.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong(key, "an integer")
        return value

    def whole_or_none(self, key: str) -> int | None:
        """Return an integer; `None` where there is none."""
        return None if self._raw.get(key) is None else self.whole(key)

    def seconds(self, key: str) -> float | None:
        """Return a positive number; `None` where there is none."""
        value = self._raw.get(key)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise _wrong(key, "a positive number")
        return float(value)

    def bytes(self, key: str) -> bytes:
        """Return what is written in base64."""
        try:
            return base64.b64decode(self.text(key).encode(), validate=True)
        except ValueError as error:
            raise _wrong(key, "base64") from error

    def entry(self, key: str) -> Entry:
        """Return an entry."""
        value = self._raw.get(key)
        if not isinstance(value, dict):
            raise _wrong(key, "an entry")
        fields = Fields(value)
        return Entry(
            key=fields.text("key"), value=fields.bytes("value"), revision=fields.whole("revision")
        )

    def entry_or_none(self, key: str) -> Entry | None:
        """Return an entry; `None` where there is none."""
        return None if self._raw.get(key) is None else self.entry(key)


def _wrong(key: str, what: str) -> InvalidInputError:
    return InvalidInputError(f"must be {what}", where=f"relay: {key}")
