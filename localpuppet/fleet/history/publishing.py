"""Publish the days of a node's history whose content is new to the bus."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any

from localpuppet.base.errors import LocalpuppetError, StateError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.schema_number import check_schema
from localpuppet.base.formats.values import mapping_of
from localpuppet.base.machine.files import write_json
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import HISTORY
from localpuppet.fleet.bus.outage import StoreChange, is_outage, ours
from localpuppet.fleet.history.day import SLOTS, day_of, history_key
from localpuppet.fleet.history.day_log import DIRECTORY, DayLog
from localpuppet.fleet.trust.signing import MessageSigner

SCHEMA = 1
# Seconds after a refusal until the next attempt, at most; spread, as a server may refuse all nodes.
RETRY = 600.0
_CHANCE = SystemRandom().random


class PublishedDays:
    """The digests of the days that the bus has, in `history/published.json`.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / DIRECTORY / "published.json"
        self._born: float | None = None

    def has(self, payloads: Mapping[str, bytes]) -> bool:
        """Return whether each payload was the last one written to its key."""
        known = self._read()
        return all(known.get(key) == _digest(payload) for key, payload in payloads.items())

    def begin(self, born: float) -> bool:
        """Forget the days of another store than the one that began then; return whether it was."""
        self._born, known = born, self._raw()
        if not known or known.get("born") == born:
            return False
        write_json(self._path, {"schema": SCHEMA, "born": born, "digests": {}})
        return True

    def note(self, key: str, payload: bytes) -> None:
        """Record that a payload was written to a key."""
        digests = {**self._read(), key: _digest(payload)}
        write_json(self._path, {"schema": SCHEMA, "born": self._born, "digests": digests})

    def _read(self) -> dict[str, Any]:
        return dict(mapping_of(self._raw().get("digests")))

    def _raw(self) -> Mapping[str, Any]:
        try:
            raw = read_json(self._path)
            check_schema(raw, SCHEMA)
        except (FileNotFoundError, StateError):
            return {}  # then all days are written once more
        return raw


@dataclass(slots=True, eq=False)
class HistoryPublisher:
    """Writes the last days of a node's history to the bus.

    Attributes:
        node: The node.
        logs: The node's history.
        published: What the bus has.
        signer: Signs as the node.
        store: Returns the connected bus; raises `UnavailableError` during an outage.
    """

    node: NodeName
    logs: Sequence[DayLog[Any]]
    published: PublishedDays
    _: KW_ONLY
    signer: MessageSigner
    store: Callable[[], Awaitable[KeyValue]]
    clock: Clock
    log: Log
    _stamps: dict[str, int] = field(default_factory=dict, init=False)
    _retry_at: float = field(default=0.0, init=False)
    _reported: str = field(default="", init=False)
    _change: StoreChange = field(default_factory=partial(StoreChange, HISTORY), init=False)

    async def step(self) -> None:
        """Publish the days that changed; log a refusal once, and try again later."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._retry_at:
            return
        try:
            await self.publish()
        except LocalpuppetError as error:
            # The agent logs an outage, and its store fails at once until the bus is reachable.
            if is_outage(error):
                return
            self._retry_at = loop.time() + RETRY * (1 + _CHANCE()) / 2
            if str(error) != self._reported:
                self.log.warning(f"cannot publish the history: {error}", kind=LineKind.INVENTORY)
            self._reported = str(error)
            return
        self._reported = ""

    async def publish(self) -> None:
        """Publish the days that changed.

        Raises:
            UnavailableError: The bus is unreachable, or denies the write.
        """
        kv = await ours(self.store())
        if await self._change.noticed(kv) and self.published.begin(self._change.born):
            self._stamps.clear()
        for log, day in _last_days(self.logs, self.clock):
            key, stamp = history_key(self.node, log.form.kind, day), log.stamp(day)
            # Days share keys, so the stamp of another day is another number.
            if self._stamps.get(key) == stamp:
                continue
            payload = log.payload(day)
            if payload is not None and not self.published.has({key: payload}):
                await ours(kv.put(key, self.signer.sign(payload, log.form.message)))
                self.published.note(key, payload)
            self._stamps[key] = stamp


def is_published(
    node: NodeName, logs: Sequence[DayLog[Any]], published: PublishedDays, clock: Clock
) -> bool:
    """Return whether the bus has the last days of a node's history."""
    return published.has(
        {
            history_key(node, log.form.kind, day): log.payload(day) or b""
            for log, day in _last_days(logs, clock)
        }
    )


def _last_days(logs: Sequence[DayLog[Any]], clock: Clock) -> Iterator[tuple[DayLog[Any], int]]:
    """Yield the days that have a key: not those of a clock that was ahead."""
    today = day_of(clock.now().timestamp())
    for log in logs:
        for day in log.days():
            if today - SLOTS < day <= today:
                yield log, day


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()
