"""A `KeyValue` that another process of this node lends: the run side's end of `bus.proxy.server`.

Owns: the questions, and that an answer which is not one is an error. Refuses to know: the engine.

Invariants: what comes back is from the side that talks to the network, and is believed as much as
the network is: its form is checked, and nothing else can be; it takes bounded time and memory.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

from localpuppet.bus.key_value import (
    Change,
    Entry,
    Gone,
    Listing,
    Put,
    check_key,
    check_prefix,
    check_value,
)
from localpuppet.bus.proxy.server import encode, entry_from, read
from localpuppet.errors import InvalidInputError, UnavailableError
from localpuppet.formats.fields import Fields
from localpuppet.machine.unix_socket import ask

# The network side has a deadline of its own; ours ends calls that it forgot.
MARGIN = 2.0
# More than any listing that a run side asks for: who holds which lease.
MAX_ENTRIES = 100_000
MAX_BYTES = 64 * 1024 * 1024


class ProxyKeyValue:
    """The bus, as the network side has it; see `KeyValue` for what the methods promise.

    Args:
        socket: The network side's socket.
        engine: Which of its stores; that of the site for `None`.
        timeout: The deadline of each call in seconds.
        owner: The network side's user id: the socket is in its directory, where it can put a link
            to anybody's. `None` asks whoever listens.
    """

    def __init__(
        self,
        socket: Path,
        *,
        engine: str | None = None,
        timeout: float,
        owner: int | None = None,
    ) -> None:
        self._socket = socket
        self._owner = owner
        self._engine = engine
        self._timeout = timeout
        self._closed = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return nothing: the network side logs them."""
        return ()

    async def get(self, key: str) -> Entry | None:
        """Return the newest value of a key."""
        found = await self._one("get", key=check_key(key))
        with _understood():
            fields = found.inner_or_none("entry")
            return None if fields is None else entry_from(fields)

    async def list(self, prefix: str) -> Listing:
        """Return all that is below a prefix."""
        deadline = self._timeout + MARGIN
        try:
            async with (
                asyncio.timeout(deadline),
                aclosing(self._ask("list", prefix=check_prefix(prefix))) as lines,
            ):
                async for change in _changes(lines):
                    if isinstance(change, Listing):
                        return change
        except TimeoutError as error:
            raise UnavailableError(
                f"did not list all within {deadline:g} s", where="network side"
            ) from error
        raise _rubbish()

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> int:
        """Write a value; return its revision."""
        revision = await self._write("put", key, value, ttl=ttl)
        if revision is None:
            raise _rubbish()
        return revision

    async def add_if_new(self, key: str, value: bytes, *, ttl: float | None = None) -> int | None:
        """Write a value if the key is not there."""
        return await self._write("add_if_new", key, value, ttl=ttl)

    async def set_if_revision(
        self, key: str, value: bytes, revision: int, *, ttl: float | None = None
    ) -> int | None:
        """Write a value if the key still has that revision."""
        return await self._write("set_if_revision", key, value, ttl=ttl, revision=revision)

    async def remove_if_revision(self, key: str, revision: int) -> bool:
        """Remove a key if it still has that revision."""
        found = await self._one("remove_if_revision", key=check_key(key), revision=revision)
        with _understood():
            return found.boolean("done")

    async def watch(self, prefix: str, *, after: int | None = None) -> AsyncGenerator[Change, None]:
        """Follow all that happens below a prefix."""
        async with aclosing(self._ask("watch", prefix=check_prefix(prefix), after=after)) as lines:
            async for change in _changes(lines):
                yield change

    async def close(self) -> None:
        """Ask no more."""
        self._closed = True

    async def _write(self, verb: str, key: str, value: bytes, **more: Any) -> int | None:  # noqa: ANN401
        text = base64.b64encode(check_value(value, more["ttl"])).decode("ascii")
        found = await self._one(verb, key=check_key(key), value=text, **more)
        with _understood():
            return found.integer_or_none("revision")

    async def _one(self, verb: str, **fields: Any) -> Fields:  # noqa: ANN401
        async with aclosing(self._ask(verb, **fields)) as lines:
            return await anext(lines)

    async def _ask(self, verb: str, **fields: Any) -> AsyncGenerator[Fields, None]:  # noqa: ANN401
        """Yield the lines that answer, each of them a success."""
        if self._closed:
            raise UnavailableError("was closed", where="bus")
        question = encode({"do": verb, "engine": self._engine, **fields})
        patience = self._timeout + MARGIN
        answers = ask(self._socket, question, patience=patience, owner=self._owner)
        async with aclosing(answers) as lines:
            async for line in lines:
                with _understood():
                    found = read(line)
                    refusal = None if found.boolean("ok") else _refusal(found)
                if refusal is not None:
                    raise refusal
                yield found


async def _changes(lines: AsyncGenerator[Fields, None]) -> AsyncGenerator[Change, None]:
    """Put the lines of a watch together: a listing is several."""
    async for line in lines:
        with _understood():
            change = _change(line)
        if isinstance(change, int):
            entries: list[Entry] = []
            size = 0
            while len(entries) < change:
                following = await anext(lines)
                with _understood():
                    entry = entry_from(following.inner("put"))
                size += len(entry.key) + len(entry.value)
                if change > MAX_ENTRIES or size > MAX_BYTES:
                    raise UnavailableError("lists more than there can be", where="network side")
                entries.append(entry)
            yield Listing(entries=tuple(entries), revision=line.integer("listing"))
        else:
            yield change


def _refusal(line: Fields) -> UnavailableError | InvalidInputError:
    error = line.text("error")
    return UnavailableError(error) if line.boolean("away") else InvalidInputError(error)


def _change(line: Fields) -> Put | Gone | int:
    """Return what a line tells; for the head of a listing, how many lines follow."""
    if "listing" in line:
        line.integer("listing")
        return line.integer("count")
    if "gone" in line:
        return Gone(key=line.text("gone"), revision=line.integer("revision"))
    return Put(entry=entry_from(line.inner("put")))


@contextmanager
def _understood() -> Iterator[None]:
    """Turn an answer of another form into what it means: nobody there whom we know."""
    try:
        yield
    except InvalidInputError as error:
        raise UnavailableError(
            f"answers what we do not know: {error}",
            where="network side",
            hint="have both sides one version?",
        ) from error


def _rubbish() -> UnavailableError:
    return UnavailableError("answers what we do not know", where="network side")
