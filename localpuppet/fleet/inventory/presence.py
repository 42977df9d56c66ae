"""Presence entries: the current state of nodes, as their agents publish it.

- An entry without a form problem can be shown without further type checks.
- The signer may be a compromised node: the signature proves who published the entry, not that it is
  true.
- A listing detects expired entries, also in a store that does not report them (NATS).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.schema_number import schema_problem
from localpuppet.base.formats.values import Json, mapping_of, type_names
from localpuppet.fleet.bus.key_value import Change, KeyListing, KeyValue
from localpuppet.fleet.bus.layout import PRESENCE
from localpuppet.fleet.bus.store_calls import unending

if TYPE_CHECKING:
    from localpuppet.fleet.trust.signing import Verifier


PRESENCE_TTL = 60.0
FAREWELL_TTL = 3.0
SCHEMA = 1
_TEXTS = ("node", "state")
_TEXTS_OR_NULL = (
    "at",
    "version",
    "cause",
    "blocked",
    "release_digest",
    "other_agent_since",
    "started_at",
)
# Why the state of a node with two agents is not trusted.
OTHER_AGENT = "another agent has its name and key: one of two machines is a copy"
_OF_HOLD = ("owner", "reason", "since", "until")


def form_problem(entry: Mapping[str, Json]) -> str | None:
    """Return what is malformed in an entry, or `None`; unknown fields are allowed."""
    if problem := schema_problem(entry.get("schema"), SCHEMA):
        return problem
    holds = entry.get("holds", [])
    if not isinstance(holds, list):
        return _wrong("holds", holds)
    for place, hold in enumerate(holds):
        if not isinstance(hold, dict):
            return _wrong(f"holds[{place}]", hold)
    for key, number, kinds in (
        ("waiting", entry.get("waiting", 0), int),
        ("run_interval", entry.get("run_interval"), int | float | None),
    ):
        if not isinstance(number, kinds) or isinstance(number, bool):
            return _wrong(key, number)
    bad_field = _first_not_text(entry, _TEXTS, _TEXTS_OR_NULL)
    for hold in holds:
        bad_field = bad_field or _first_not_text(mapping_of(hold), (), _OF_HOLD)
    return bad_field or _no_time("started_at", entry.get("started_at"))


def _first_not_text(
    entry: Mapping[str, Json], needed: tuple[str, ...], others: tuple[str, ...]
) -> str | None:
    for key in (*needed, *others):
        value = entry.get(key)
        if not isinstance(value, str) and (key in needed or value is not None):
            return _wrong(key, value)
    return None


def _no_time(key: str, text: Json) -> str | None:
    try:
        if isinstance(text, str) and text and datetime.fromisoformat(text).tzinfo is None:
            return f"its {key} has no zone"
    except ValueError:
        return f"its {key} is not a time"
    return None


def _wrong(key: str, value: Json) -> str:
    return f"its {key} is a {type_names[type(value)]}"


async def announce(
    kv: KeyValue, node: NodeName, token: bytes, *, ttl: float = PRESENCE_TTL
) -> None:
    """Publish a node's state, which expires unless it is published again within `ttl` seconds."""
    await kv.put(f"{PRESENCE}{node}", token, ttl=ttl)


@dataclass(slots=True, eq=False)
class PresenceWriter:
    """Publishes one node's state repeatedly; calls `contended` if another process wrote it."""

    kv: KeyValue
    node: NodeName
    contended: Callable[[], Awaitable[None]]
    _revision: int = field(default=0, init=False)

    async def announce(self, describe: Callable[[], Awaitable[bytes]]) -> None:
        """Publish the state that `describe` returns; see the function of the same name."""
        key, token = f"{PRESENCE}{self.node}", await describe()
        if self._revision:
            written = await self.kv.set_if_revision(key, token, self._revision, ttl=PRESENCE_TTL)
            if written is not None:
                self._revision = written
                return
            entry = await self.kv.get(key)  # none: it has expired
            if entry is not None and entry.revision > self._revision and entry.value != token:
                await self.contended()
                token = await describe()
        self._revision = await self.kv.put(key, token, ttl=PRESENCE_TTL)


async def nodes(kv: KeyValue) -> dict[str, bytes]:
    """Return the presence entries of the nodes that are online, by name; not verified here."""
    listing = await kv.list(PRESENCE)
    return {entry.key.removeprefix(PRESENCE): entry.value for entry in listing.entries}


def believe(verifier: "Verifier", name: str, token: bytes) -> dict[str, Any]:
    """Return the state that a node published, or a state with the reason to reject it.

    Its `last_run` is a `RunEnd`, or `None`.
    """
    from localpuppet.base.errors import LocalpuppetError
    from localpuppet.base.formats.converter import from_record
    from localpuppet.base.formats.strict_json import parse_object
    from localpuppet.fleet.bus.bus_limits import MAX_SIGNED_PAYLOAD
    from localpuppet.fleet.inventory.run_end import RunEnd
    from localpuppet.fleet.trust.signing import MessageKind

    try:
        signed = verifier.verify(token, MessageKind.PRESENCE)
        status: dict[str, Any] = dict(
            parse_object(signed.payload, where=name, limit=MAX_SIGNED_PAYLOAD)
        )
        if signed.signer != name or status.get("node") != name:
            return _rejected(name, f"signed by {signed.signer}")
        problem = form_problem(status)
        last = status.get("last_run")
        status["last_run"] = None if last is None else from_record(RunEnd, last)
    except LocalpuppetError as error:
        return _rejected(name, str(error))
    return _rejected(name, problem) if problem else status


def _rejected(name: str, why: str) -> dict[str, Any]:
    return {"schema": SCHEMA, "node": name, "state": "not trusted", "reason": why}


# Seconds between listings.
LOOK_AGAIN = 10.0


class PresenceBoard(Protocol):
    """Receives presence entries that are not verified yet."""

    def take(self, change: Change) -> None:
        """Process a change."""

    def full(self, reason: str) -> None:
        """Note that the bus has no room: entries that expire are no sign of their nodes."""

    def miss(self, names: AbstractSet[str], revision: int) -> None:
        """Remove nodes that a listing lacks, unless their entry is newer."""


async def listen(kv: KeyValue, board: PresenceBoard) -> None:
    """Pass each change to a board, without end.

    Call it in a separate task: a failed group leaves its task marked as cancelled.

    Raises:
        ExceptionGroup: The bus is unreachable: a group of `UnavailableError`.
    """
    async with asyncio.TaskGroup() as group:
        group.create_task(unending(_watch(kv, board)))
        group.create_task(unending(_look(kv, board)))


async def _watch(kv: KeyValue, board: PresenceBoard) -> None:
    async with aclosing(kv.watch(PRESENCE)) as changes:
        async for change in changes:
            board.take(change)


async def _look(kv: KeyValue, board: PresenceBoard) -> None:
    while True:
        await asyncio.sleep(LOOK_AGAIN)
        if full := await kv.fullness():
            board.full(full)
        else:
            board.miss(*await _present(kv))


async def _present(kv: KeyValue) -> tuple[AbstractSet[str], int]:
    """Return the nodes in a listing, and its revision, with the memory of one part."""
    names: set[str] = set()
    async with aclosing(kv.watch(PRESENCE, parts=True)) as changes:
        async for change in changes:
            if isinstance(change, KeyListing):
                names.update(entry.key.removeprefix(PRESENCE) for entry in change.entries)
                if not change.more:
                    return names, change.revision
    raise UnavailableError("the listing ended too early", where="bus")
