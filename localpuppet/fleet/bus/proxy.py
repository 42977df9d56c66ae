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
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.base.formats.converter import AllowedRange, Message
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.unix_socket import ask
from localpuppet.fleet.bus import key_value
from localpuppet.fleet.bus.bus_limits import MAX_VALUE

# A value of 512 KiB takes 683 KiB here.
MAX_LINE = 1024 * 1024


_T = TypeVar("_T")

# Errors of the other process by their word in an answer, subclasses first.
_FAILURES: Mapping[str, type[UnavailableError | InvalidInputError]] = {
    "full": key_value.FullError,
    "refused": key_value.RefusedError,
    "unreachable": UnavailableError,
    "invalid": InvalidInputError,
}


class _Line(Message):
    WHERE, LIMIT, IS_OPEN = "relay", MAX_LINE, True


class _Call(_Line):
    """A call: the verb, and what the method of the store takes; `key` may be a prefix."""

    verb: str
    engine: str | None = None
    key: str
    after: int | None = None
    largest: int = MAX_VALUE
    parts: bool = False
    value: bytes | None = None
    ttl: float | None = None
    revision: int | None = None


class _Answer(_Line):
    """A line of the answer: an error, what the method returns, or a part of a change.

    Attributes:
        failure: A key of `_FAILURES`, with an error.
        listing: The revision of a listing, whose `count` entries follow, a line each.
    """

    ok: bool
    error: str | None = None
    failure: str = ""
    born: Annotated[float, AllowedRange(minimum=0)] | None = None
    entry: key_value.KeyValueEntry | None = None
    revision: int | None = None
    done: bool | None = None
    removed: key_value.KeyRemoval | None = None
    listing: int | None = None
    count: int = 0
    more: bool = False


def _given(value: _T | None, field: str) -> _T:
    if value is None:
        raise InvalidInputError(f"the key {field!r} is missing", where=_Line.WHERE)
    return value


async def relayed(
    store: Callable[[str | None], AbstractAsyncContextManager[key_value.KeyValue]], line: bytes
) -> AsyncGenerator[bytes, None]:
    """Execute a line of the run side; yield the answer, as lines."""
    try:
        call = _Call.parse(line)
        async with store(call.engine) as kv, aclosing(_answers(kv, call)) as answers:
            async for answer in answers:
                yield _encoded(answer)
    except LocalpuppetError as error:
        kinds = (word for word, kind in _FAILURES.items() if isinstance(error, kind))
        failure = next(kinds, "invalid")
        yield _encoded(_Answer(ok=False, failure=failure, error=one_line(str(error))))


async def _answers(kv: key_value.KeyValue, call: _Call) -> AsyncGenerator[_Answer, None]:
    if call.verb == "watch":
        yield _Answer(ok=True)  # at once: the first change may take long
        changes = kv.watch(call.key, after=call.after, largest=call.largest, parts=call.parts)
        async with aclosing(changes):
            async for change in changes:
                for line in _change_lines(change):
                    yield line
    elif call.verb == "list":
        for line in _change_lines(await kv.list(call.key, largest=call.largest)):
            yield line
    elif call.verb == "born":
        yield _Answer(ok=True, born=await kv.born(call.key))
    elif call.verb == "get":
        yield _Answer(ok=True, entry=await kv.get(call.key))
    elif call.verb == "remove_if_revision":
        revision = _given(call.revision, "revision")
        yield _Answer(ok=True, done=await kv.remove_if_revision(call.key, revision))
    else:
        yield _Answer(ok=True, revision=await _write(kv, call))


async def _write(kv: key_value.KeyValue, call: _Call) -> int | None:
    if call.verb not in ("put", "add_if_new", "set_if_revision"):
        raise InvalidInputError(f"the verb {call.verb[:40]!r} is unknown", where=_Line.WHERE)
    value = _given(call.value, "value")
    if call.verb == "put":
        return await kv.put(call.key, value, ttl=call.ttl)
    if call.verb == "add_if_new":
        return await kv.add_if_new(call.key, value, ttl=call.ttl)
    revision = _given(call.revision, "revision")
    return await kv.set_if_revision(call.key, value, revision, ttl=call.ttl)


def _change_lines(change: key_value.Change) -> list[_Answer]:
    if isinstance(change, key_value.KeyListing):
        count = len(change.entries)
        head = _Answer(ok=True, listing=change.revision, count=count, more=change.more)
        return [head, *(_Answer(ok=True, entry=entry) for entry in change.entries)]
    if isinstance(change, key_value.KeyRemoval):
        return [_Answer(ok=True, removed=change)]
    return [_Answer(ok=True, entry=change.entry)]


def _encoded(line: _Line) -> bytes:
    """Return a line, with its newline."""
    return line.to_payload() + b"\n"


_WHERE = "network side"  # in messages
# Added to the network side's own deadline, so that calls that it forgot end too.
MARGIN = 2.0
# More than any listing that a run side requests: the holders of leases.
MAX_ENTRIES = 100_000
MAX_BYTES = 64 * 1024 * 1024


class ProxyKeyValue(key_value.KeyValue):
    """The bus, through the network side.

    Args:
        engine: The engine of the store; `None` for the site's.
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
        return (await self._first_answer("born", key=prefix)).born or 0.0

    async def _get(self, key: str) -> key_value.KeyValueEntry | None:
        return (await self._first_answer("get", key=key)).entry

    async def _list(self, prefix: str, largest: int) -> key_value.KeyListing:
        deadline = self.timeout + self._margin
        try:
            async with (
                asyncio.timeout(deadline),
                aclosing(self._ask("list", key=prefix, largest=largest)) as answers,
            ):
                async for change in self._changes(answers):
                    if isinstance(change, key_value.KeyListing):
                        return change
        except TimeoutError as error:
            raise UnavailableError(
                f"did not list all within {deadline:g} s", where=_WHERE
            ) from error
        raise self._rubbish()

    async def _write(
        self, key: str, value: bytes, ttl: float | None, expected: int | None
    ) -> int | None:
        verb = "put" if expected is None else "set_if_revision" if expected else "add_if_new"
        answer = await self._first_answer(
            verb, key=key, value=value, ttl=ttl, revision=expected or 0
        )
        if answer.revision is None and expected is None:
            raise self._rubbish()
        return answer.revision

    async def _remove(self, key: str, revision: int) -> bool:
        answer = await self._first_answer("remove_if_revision", key=key, revision=revision)
        if answer.done is None:
            raise self._rubbish()
        return answer.done

    async def _watch(
        self, prefix: str, how: key_value.WatchOptions
    ) -> AsyncGenerator[key_value.Change, None]:
        async with aclosing(self._ask("watch", key=prefix, **asdict(how))) as answers:
            await anext(answers)  # changes follow later
            async for change in self._changes(answers):
                yield change

    async def _first_answer(self, verb: str, **arguments: Any) -> _Answer:  # noqa: ANN401
        async with aclosing(self._ask(verb, **arguments)) as answers:
            return await anext(answers)

    async def _ask(self, verb: str, **arguments: Any) -> AsyncGenerator[_Answer, None]:  # noqa: ANN401
        """Yield the lines of the answer; raise the first that is an error."""
        if self._closed:
            raise UnavailableError("was closed", where="bus")
        question = _encoded(_Call(verb=verb, engine=self._engine, **arguments))
        patience = self.timeout + self._margin
        lines = ask(self._socket, question, patience=patience, owner=self._owner)
        async with aclosing(lines):
            async for line in lines:
                try:
                    answer = _Answer.parse(line)
                except InvalidInputError as error:
                    raise self._rubbish(f": {error}") from error
                if not answer.ok:
                    raise self._refusal(answer)
                yield answer

    async def _changes(
        self, answers: AsyncGenerator[_Answer, None]
    ) -> AsyncGenerator[key_value.Change, None]:
        """Assemble the changes of a watch from lines: a listing has several."""
        async for head in answers:
            if head.listing is None:
                yield head.removed or key_value.KeyWrite(entry=self._entry(head))
                continue
            entries: list[key_value.KeyValueEntry] = []
            size = 0
            while len(entries) < head.count:
                entry = self._entry(await anext(answers))
                size += len(entry.key) + len(entry.value)
                if head.count > MAX_ENTRIES or size > MAX_BYTES:
                    raise UnavailableError("lists more entries than the limit allows", where=_WHERE)
                entries.append(entry)
            yield key_value.KeyListing(
                entries=tuple(entries), revision=head.listing, more=head.more
            )

    def _entry(self, answer: _Answer) -> key_value.KeyValueEntry:
        if answer.entry is None:
            raise self._rubbish()
        return answer.entry

    def _refusal(self, answer: _Answer) -> UnavailableError | InvalidInputError:
        kind = _FAILURES.get(answer.failure)
        return self._rubbish() if answer.error is None or kind is None else kind(answer.error)

    def _rubbish(self, problem: str = "") -> UnavailableError:
        return UnavailableError(
            f"sent an invalid answer{problem}",
            where=_WHERE,
            hint="run the same version on both sides",
        )
