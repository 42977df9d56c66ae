"""A `KeyValue` that another process of this node lends: the run side's end of `bus.proxy.server`.

Owns: the questions, and that an answer which is not one is an error. Refuses to know: the engine.

Invariants: what comes back is from the side that talks to the network, and is believed as much as
the network is: its form is checked, and nothing else can be; it takes bounded time and memory.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.machine.unix_socket import ask
from localpuppet.fleet.bus.checked_store import CheckedStore, Following
from localpuppet.fleet.bus.key_value import Change, Entry, Gone, Listing, Put, RefusedError
from localpuppet.fleet.bus.proxy.server import encode, entry_from, read

# The network side has a deadline of its own; ours ends calls that it forgot.
MARGIN = 2.0
# More than any listing that a run side asks for: who holds which lease.
MAX_ENTRIES = 100_000
MAX_BYTES = 64 * 1024 * 1024


class ProxyKeyValue(CheckedStore):
    """The bus, as the network side has it.

    Args:
        socket: The network side's socket.
        engine: Which of its stores; that of the site for `None`.
        timeout: The deadline of each call in seconds.
        owner: The network side's user id: the socket is in its directory, where it can put a link
            to anybody's. `None` asks whoever listens.
        called: What it is called in messages; the network side by default.
        margin: Seconds that the other side may take beside the deadline.
    """

    def __init__(
        self,
        socket: Path,
        *,
        engine: str | None = None,
        timeout: float,
        owner: int | None = None,
        called: str = "",
        margin: float = MARGIN,
    ) -> None:
        super().__init__(timeout)
        self._called = called
        self._margin = margin
        self._where = called or "network side"
        self._socket = socket
        self._owner = owner
        self._engine = engine
        self._closed = False

    async def close(self) -> None:
        """Ask no more; see `KeyValue.close`."""
        self._closed = True

    async def _get(self, key: str) -> Entry | None:
        answer = await self._one("get", key=key)
        with self._understood():
            fields = answer.inner_or_none("entry")
            return None if fields is None else entry_from(fields)

    async def _list(self, prefix: str, largest: int) -> Listing:
        deadline = self.timeout + self._margin
        try:
            async with (
                asyncio.timeout(deadline),
                aclosing(self._ask("list", prefix=prefix, largest=largest)) as lines,
            ):
                async for change in self._changes(lines):
                    if isinstance(change, Listing):
                        return change
        except TimeoutError as error:
            raise UnavailableError(
                f"did not list all within {deadline:g} s", where=self._where
            ) from error
        raise self._rubbish()

    async def _write(
        self, key: str, value: bytes, ttl: float | None, expected: int | None
    ) -> int | None:
        text = base64.b64encode(value).decode("ascii")
        if expected:
            answer = await self._one(
                "set_if_revision", key=key, value=text, ttl=ttl, revision=expected
            )
        else:
            verb = "put" if expected is None else "add_if_new"
            answer = await self._one(verb, key=key, value=text, ttl=ttl)
        with self._understood():
            revision = answer.integer_or_none("revision")
        if revision is None and expected is None:
            raise self._rubbish()
        return revision

    async def _remove(self, key: str, revision: int) -> bool:
        answer = await self._one("remove_if_revision", key=key, revision=revision)
        with self._understood():
            return answer.boolean("done")

    async def _watch(self, prefix: str, how: Following) -> AsyncGenerator[Change, None]:
        async with aclosing(self._ask("watch", prefix=prefix, **asdict(how))) as lines:
            with self._understood():
                (await anext(lines)).boolean("heard")  # changes come when there are any
            async for change in self._changes(lines):
                yield change

    async def _one(self, verb: str, **fields: Any) -> Fields:  # noqa: ANN401
        async with aclosing(self._ask(verb, **fields)) as lines:
            return await anext(lines)

    async def _ask(self, verb: str, **fields: Any) -> AsyncGenerator[Fields, None]:  # noqa: ANN401
        """Yield the lines that answer, each of them a success."""
        if self._closed:
            raise UnavailableError("was closed", where="bus")
        question = encode({"do": verb, "engine": self._engine, **fields})
        patience = self.timeout + self._margin
        answers = ask(
            self._socket,
            question,
            patience=patience,
            owner=self._owner,
            called=self._called,
        )
        async with aclosing(answers) as lines:
            async for line in lines:
                with self._understood():
                    found = read(line)
                    refusal = None if found.boolean("ok") else _refusal(found)
                if refusal is not None:
                    raise refusal
                yield found

    async def _changes(self, lines: AsyncGenerator[Fields, None]) -> AsyncGenerator[Change, None]:
        """Put the lines of a watch together: a listing is several."""
        async for line in lines:
            with self._understood():
                change = _change(line)
            if isinstance(change, int):
                entries: list[Entry] = []
                size = 0
                while len(entries) < change:
                    following = await anext(lines)
                    with self._understood():
                        entry = entry_from(following.inner("put"))
                    size += len(entry.key) + len(entry.value)
                    if change > MAX_ENTRIES or size > MAX_BYTES:
                        raise UnavailableError("lists more than there can be", where=self._where)
                    entries.append(entry)
                yield Listing(
                    entries=tuple(entries),
                    revision=line.integer("listing"),
                    more=line.boolean("more"),
                )
            else:
                yield change

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Turn an answer of another form into what it means: nobody there whom we know."""
        try:
            yield
        except InvalidInputError as error:
            raise UnavailableError(
                f"answers what we do not know: {error}",
                where=self._where,
                hint="have both sides one version?",
            ) from error

    def _rubbish(self) -> UnavailableError:
        return UnavailableError("answers what we do not know", where=self._where)


def _refusal(line: Fields) -> UnavailableError | InvalidInputError:
    error = line.text("error")
    if not line.boolean("away"):
        return InvalidInputError(error)
    # A network side of an older version does not say so.
    refused = "refused" in line and line.boolean("refused")
    return RefusedError(error) if refused else UnavailableError(error)


def _change(line: Fields) -> Put | Gone | int:
    """Return what a line tells; for the head of a listing, how many lines follow."""
    if "listing" in line:
        line.integer("listing")
        line.boolean("more")
        return line.integer("count")
    if "gone" in line:
        return Gone(key=line.text("gone"), revision=line.integer("revision"))
    return Put(entry=entry_from(line.inner("put")))
