"""A `KeyValue` that calls another process of this node, and the server there.

The run side has no network connection and no credentials for the bus. It passes what it writes
there (signed triggers of Puppet, leases) to this proxy; `ProxyKeyValue` is the client. This
module has the format of the lines; any other line raises `InvalidInputError`.

Whatever a line contains, the answer is in this format; an error is a line with `ok` false and one
printable line of text.

The other process talks to the network, so this client trusts its answers as little as the network:
it checks their form and bounds their time and memory.
"""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.unix_socket import ask
from localpuppet.fleet.bus.checked_store import CheckedStore, WatchOptions
from localpuppet.fleet.bus.key_value import (
    Change,
    FullError,
    KeyListing,
    KeyRemoval,
    KeyValue,
    KeyValueEntry,
    KeyWrite,
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


_WHERE = "network side"  # in messages
# Added to the network side's own deadline, so that calls that it forgot end too.
MARGIN = 2.0
# More than any listing that a run side requests: the holders of leases.
MAX_ENTRIES = 100_000
MAX_BYTES = 64 * 1024 * 1024


class ProxyKeyValue(CheckedStore):
    """The bus, through the network side.

    Args:
        socket: The network side's socket.
        engine: The engine of the store; `None` for the site's.
        timeout: The deadline of each call in seconds.
        owner: The network side's user id. The socket is in its directory, where it could place a
            link to another user's socket. `None` accepts any process.
        margin: Seconds that the other side may take beyond the deadline.
    """

    def __init__(
        self,
        socket: Path,
        *,
        engine: str | None = None,
        timeout: float,
        owner: int | None = None,
        margin: float = MARGIN,
    ) -> None:
        super().__init__(timeout)
        self._margin = margin
        self._socket = socket
        self._owner = owner
        self._engine = engine
        self._closed = False

    async def close(self) -> None:
        """Reject later calls; see `KeyValue.close`."""
        self._closed = True

    async def _born(self, prefix: str) -> float:
        answer = await self._first_answer("born", prefix=prefix)
        with self._understood():
            return answer.seconds_or_none("born") or 0.0

    async def _get(self, key: str) -> KeyValueEntry | None:
        answer = await self._first_answer("get", key=key)
        with self._understood():
            fields = answer.inner_or_none("entry")
            return None if fields is None else entry_from(fields)

    async def _list(self, prefix: str, largest: int) -> KeyListing:
        deadline = self.timeout + self._margin
        try:
            async with (
                asyncio.timeout(deadline),
                aclosing(self._ask("list", prefix=prefix, largest=largest)) as lines,
            ):
                async for change in self._changes(lines):
                    if isinstance(change, KeyListing):
                        return change
        except TimeoutError as error:
            raise UnavailableError(
                f"did not list all within {deadline:g} s", where=_WHERE
            ) from error
        raise self._rubbish()

    async def _write(
        self, key: str, value: bytes, ttl: float | None, expected: int | None
    ) -> int | None:
        text = base64.b64encode(value).decode("ascii")
        if expected:
            answer = await self._first_answer(
                "set_if_revision", key=key, value=text, ttl=ttl, revision=expected
            )
        else:
            verb = "put" if expected is None else "add_if_new"
            answer = await self._first_answer(verb, key=key, value=text, ttl=ttl)
        with self._understood():
            revision = answer.integer_or_none("revision")
        if revision is None and expected is None:
            raise self._rubbish()
        return revision

    async def _remove(self, key: str, revision: int) -> bool:
        answer = await self._first_answer("remove_if_revision", key=key, revision=revision)
        with self._understood():
            return answer.boolean("done")

    async def _watch(self, prefix: str, how: WatchOptions) -> AsyncGenerator[Change, None]:
        async with aclosing(self._ask("watch", prefix=prefix, **asdict(how))) as lines:
            with self._understood():
                (await anext(lines)).boolean("watching")  # changes follow later
            async for change in self._changes(lines):
                yield change

    async def _first_answer(self, verb: str, **fields: Any) -> Fields:  # noqa: ANN401
        async with aclosing(self._ask(verb, **fields)) as lines:
            return await anext(lines)

    async def _ask(self, verb: str, **fields: Any) -> AsyncGenerator[Fields, None]:  # noqa: ANN401
        """Yield the lines of the answer; raise the first that is an error."""
        if self._closed:
            raise UnavailableError("was closed", where="bus")
        question = encode({"verb": verb, "engine": self._engine, **fields})
        patience = self.timeout + self._margin
        answers = ask(self._socket, question, patience=patience, owner=self._owner)
        async with aclosing(answers) as lines:
            async for line in lines:
                with self._understood():
                    reply_fields = read(line)
                    refusal = None if reply_fields.boolean("ok") else _refusal(reply_fields)
                if refusal is not None:
                    raise refusal
                yield reply_fields

    async def _changes(self, lines: AsyncGenerator[Fields, None]) -> AsyncGenerator[Change, None]:
        """Assemble the changes of a watch from lines: a listing has several."""
        async for line in lines:
            with self._understood():
                change = _change(line)
            if isinstance(change, int):
                entries: list[KeyValueEntry] = []
                size = 0
                while len(entries) < change:
                    following = await anext(lines)
                    with self._understood():
                        entry = entry_from(following.inner("put"))
                    size += len(entry.key) + len(entry.value)
                    if change > MAX_ENTRIES or size > MAX_BYTES:
                        raise UnavailableError(
                            "lists more entries than the limit allows", where=_WHERE
                        )
                    entries.append(entry)
                yield KeyListing(
                    entries=tuple(entries),
                    revision=line.integer("listing"),
                    more=line.boolean("more"),
                )
            else:
                yield change

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Turn an answer of another form into `UnavailableError`."""
        try:
            yield
        except InvalidInputError as error:
            raise UnavailableError(
                f"sent an invalid answer: {error}",
                where=_WHERE,
                hint="run the same version on both sides",
            ) from error

    def _rubbish(self) -> UnavailableError:
        return UnavailableError("sent an invalid answer", where=_WHERE)


def _refusal(line: Fields) -> UnavailableError | InvalidInputError:
    error = line.text("error")
    if not line.boolean("unreachable"):
        return InvalidInputError(error)
    if line.boolean("full"):
        return FullError(error)
    return RefusedError(error) if line.boolean("refused") else UnavailableError(error)


def _change(line: Fields) -> KeyWrite | KeyRemoval | int:
    """Return the change in a line; for the head of a listing, the number of lines that follow."""
    if "listing" in line:
        line.integer("listing")
        line.boolean("more")
        return line.integer("count")
    if "removed" in line:
        return KeyRemoval(key=line.text("removed"), revision=line.integer("revision"))
    return KeyWrite(entry=entry_from(line.inner("put")))
