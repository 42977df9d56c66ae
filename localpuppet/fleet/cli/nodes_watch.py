"""`localpuppet nodes --watch`: shows each change of a node's report, until the user stops it.

The board remembers what it showed of each node, so that it shows only changes. A node whose entry
disappears is shown as gone, see `presence`.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.records import to_record
from localpuppet.fleet.bus import key_value, layout
from localpuppet.fleet.bus.key_value import Change, KeyListing, KeyRemoval, KeyValue, KeyValueEntry
from localpuppet.fleet.cli.node_table import cells
from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.presence import SCHEMA, believe, listen
from localpuppet.node.cli import render

if TYPE_CHECKING:
    from localpuppet.base.machine.ports import Clock
    from localpuppet.fleet.trust.signing import Verifier

AGAIN = 0.5
GONE = "gone"
HEAD = ("TIME (UTC)", "NODE", "STATE", "LAST RUN", "RELEASE", "FIRST ERROR OR REMARK")
# Wide enough for later states: 'applying', 'unchanged'.
LEAST = [0, 0, 8, 9, 0, 0]


async def follow(connect: Callable[[], Awaitable[KeyValue]], board: "Board") -> None:
    """Show every change, without an end; note an outage once, and wait for its end.

    Raises:
        UnavailableError: The first connection to the bus failed.
    """
    kv = await connect()
    try:
        while True:
            try:
                # A separate task: a failed group leaves its task marked as cancelled.
                await asyncio.create_task(listen(kv, board))
            except* UnavailableError as errors:
                board.lost(errors.exceptions[0])
            await asyncio.sleep(AGAIN)
    finally:
        await kv.close()


class Board:
    """Shows the reports of nodes, each change once.

    Args:
        verifier: Verifies the reports' signatures.
        clock: Time.
        as_json: Whether to show JSON lines instead of rows.
    """

    def __init__(self, verifier: "Verifier", clock: "Clock", *, as_json: bool) -> None:
        self._verifier = verifier
        self._clock = clock
        self._as_json = as_json
        self._known: dict[str, tuple[int, list[str]]] = {}
        self._widths = list(LEAST)
        self._widen(HEAD)
        self._begun = False
        self._away = ""  # what the bus does again after an outage

    def take(self, change: Change) -> None:
        """Show a change."""
        if self._away:
            render.say(f"# the bus {self._away} again", err=True)
        self._away = ""
        if isinstance(change, KeyListing):
            self._begin(change)
        for entry in key_value.entries(change):
            self._put(entry)
        if isinstance(change, KeyListing):
            # Ignore revisions: it may be another store.
            for name in self._known.keys() - {_name(entry.key) for entry in change.entries}:
                self._gone(name)
        elif isinstance(change, KeyRemoval):
            self._gone(_name(change.key))
        sys.stdout.flush()

    def miss(self, names: AbstractSet[str], revision: int) -> None:
        """Show known nodes as gone if a listing lacks them, except those with a newer revision."""
        for name in sorted(self._known.keys() - names):
            if self._known[name][0] <= revision:
                self._gone(name)
        sys.stdout.flush()

    def full(self, reason: str) -> None:
        """Note once that nodes cannot publish; see `PresenceBoard`."""
        if not self._away:
            render.say(f"# nodes cannot publish their state: {reason}", err=True)
        self._away = "accepts values"

    def lost(self, error: BaseException) -> None:
        """Note an outage once; raise its error if it precedes the first listing."""
        if not self._begun:
            raise error
        if not self._away:
            render.say(f"# the bus is unreachable, still trying: {error}", err=True)
        self._away = "is reachable"

    def _begin(self, listing: "KeyListing") -> None:
        if not self._begun and not self._as_json:
            for entry in listing.entries:
                self._widen(["", *self._cells(self._believe(entry))])
            self._emit([click.style(cell, bold=True) for cell in HEAD])
        self._begun = True

    def _believe(self, entry: KeyValueEntry) -> dict[str, Any]:
        return believe(self._verifier, _name(entry.key), entry.value)

    def _cells(self, node_status: dict[str, Any]) -> list[str]:
        now = self._clock.now()
        row = NodeRow.of_presence(node_status["node"], node_status, now=now.timestamp())
        return cells(replace(row, state=GONE) if node_status["state"] == GONE else row, now)

    def _put(self, entry: KeyValueEntry) -> None:
        name = _name(entry.key)
        node_status = self._believe(entry)
        row = self._cells(node_status)
        before = self._known.get(name)
        self._known[name] = (entry.revision, row)
        if before is None or before[1] != row or self._as_json:
            self._show(node_status, row)

    def _gone(self, name: str) -> None:
        if self._known.pop(name, None) is not None:
            node_status = {"schema": SCHEMA, "node": name, "state": GONE}
            self._show(node_status, self._cells(node_status))

    def _show(self, node_status: dict[str, Any], row: list[str]) -> None:
        if self._as_json:
            last = node_status.get("last_run")
            more = {} if last is None else {"last_run": to_record(last)}
            render.emit_json_line({**node_status, **more})
        else:
            self._emit([f"{self._clock.now():%H:%M:%S}", *row])

    def _widen(self, row: Sequence[str]) -> None:
        lengths = (len(click.unstyle(cell)) for cell in row)
        self._widths = [max(pair) for pair in zip(self._widths, lengths, strict=True)]

    def _emit(self, row: Sequence[str]) -> None:
        self._widen(row)
        render.emit(render.aligned(row, self._widths, end=render.columns()))


def _name(key: str) -> str:
    return key.removeprefix(layout.PRESENCE)
