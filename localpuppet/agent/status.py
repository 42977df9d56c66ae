"""How this node is, as its agent tells the others."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from localpuppet import __version__
from localpuppet.agent.agent import Agent
from localpuppet.errors import LocalpuppetError
from localpuppet.formats.names import ReleasePath
from localpuppet.formats.times import show_time
from localpuppet.formats.values import Json
from localpuppet.runs.holds import Holds
from localpuppet.runs.run import State, Status
from localpuppet.trust.signing import Kind
from localpuppet.wiring.fleet import FleetParts


class Describer:
    """Describes the node.

    Args:
        fleet: The wiring.
        agent: The node's agent.
        holds: Returns the holds on the node.
    """

    def __init__(self, fleet: FleetParts, agent: Agent, holds: Callable[[], Holds]) -> None:
        self._fleet = fleet
        self._agent = agent
        self._holds = holds

    def signed(self) -> bytes:
        """Return the presence entry: JSON, signed."""
        return self._fleet.signer.sign(json.dumps(self.status()).encode(), Kind.PRESENCE)

    def status(self) -> dict[str, Json]:
        """Return how the node is; the fields are in docs/agent.md."""
        parts, agent = self._fleet.parts, self._agent
        try:
            holds: list[Json] = [hold.to_dict() for hold in self._holds().active()]
        except LocalpuppetError as error:
            holds = [{"owner": "", "reason": str(error), "since": "", "until": None}]
        last = self._last()
        running = agent.running
        state = "applying" if running else "on hold" if holds else "idle"
        settled: list[Json] = [found.to_dict() for found in agent.settled]
        return {
            "schema": 1,
            "node": str(agent.me),
            "at": show_time(parts.clock.now()),
            "version": __version__,
            "state": state,
            "cause": str(running) if running else None,
            "waiting": len(agent.waiting or ()),
            "holds": holds,
            "last": _short(last),
            "release": self._release(last),
            "settled": settled,
        }

    def last_run(self) -> Mapping[str, Json]:
        """Return the record of the last finished run; empty before the first."""
        last = self._last()
        return {} if last is None else last.to_dict()

    def _last(self) -> Status | None:
        for status in self._fleet.parts.records.history():
            if status.state is State.FINISHED:
                return status
        return None

    def _release(self, last: Status | None) -> Json:
        """Return the digest of the release that the last run had, where it is staged."""
        if last is None:
            return None
        link = self._fleet.parts.settings.modules / ReleasePath(last.app)
        try:
            return link.readlink().name
        except OSError:
            return None


def _short(status: Status | None) -> dict[str, Any] | None:
    if status is None:
        return None
    return {
        "run": status.id,
        "app": status.app,
        "outcome": str(status.outcome),
        "finished_at": status.finished_at,
        "noop": status.noop,
        "reason": status.reason,
    }
