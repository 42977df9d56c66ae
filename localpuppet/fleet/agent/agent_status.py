"""Describe the state of this node for other nodes."""

import json
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from pathlib import Path

from localpuppet import __version__
from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.converter import to_record
from localpuppet.base.formats.names import ReleasePath, RunId
from localpuppet.base.formats.times import show_time
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.agent.agent import Agent
from localpuppet.fleet.history.node_history import last_end
from localpuppet.fleet.inventory.presence import SCHEMA
from localpuppet.fleet.inventory.run_end import RunEnd, newest
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.releases.ledger import Rollback
from localpuppet.node.runs.holds import Holds
from localpuppet.node.runs.run import Attempt, published
from localpuppet.node.runs.run_records import Records
from localpuppet.node.runs.run_replies import log_reply, report_reply

DURATIONS = 5  # of successful runs, which a rollout receives
LOOKED_AT = 50  # runs that are searched for these


@dataclass(frozen=True, slots=True)
class Describer:
    """Describes the node.

    Attributes:
        records: The records of the node's runs.
        attempt: Returns the last apply that was refused.
        has_entry: Returns whether the node has an entry to publish.
        run_interval: Seconds between periodic runs; `None` for no periodic runs.
        confirmation: Returns the published state of the confirmation of a deployed release.
    """

    agent: Agent
    _: KW_ONLY
    holds: Callable[[], Holds]
    records: Records
    attempt: Callable[[], Attempt | None]
    modules: Path
    rollback: Callable[[], Rollback | None]
    assigned: Callable[[], Assignment | None]
    started_at: str
    has_entry: Callable[[], bool]
    run_interval: float | None
    confirmation: Callable[[], Mapping[str, Json] | None]
    signer: MessageSigner
    clock: Clock

    def signed(self) -> bytes:
        """Return the presence entry as signed JSON."""
        return self.signer.sign(json.dumps(self.status()).encode(), MessageKind.PRESENCE)

    def status(self) -> dict[str, Json]:
        """Return the state of the node; docs/reference/agent.md describes the fields."""
        agent = self.agent
        try:
            holds: list[Json] = [hold.to_dict() for hold in self.holds().active()]
        except LocalpuppetError as error:
            holds = [{"owner": "", "reason": str(error), "since": "", "until": None}]
        last = self._newest()
        running = agent.running
        state = "applying" if running else "on hold" if holds else "idle"
        ends = (*agent.not_accepted.values(), *agent.outcomes)
        outcomes: list[Json] = [outcome.to_dict() for outcome in ends]
        return {
            "schema": SCHEMA,
            "node": str(agent.me),
            "at": show_time(self.clock.now()),
            "version": __version__,
            "state": state,
            "started_at": self.started_at,
            "has_entry": self.has_entry(),
            "run_interval": self.run_interval,
            "cause": str(running) if running else None,
            "waiting": len(agent.waiting or ()),
            "blocked": agent.blocked or None,
            "holds": holds,
            "other_agent_since": agent.other_agent_since,
            "last_run": None if last is None else to_record(last),
            "release_digest": self._release(last),
            "rollback": self._rolled_back(),
            "assignment": self._assignment(),
            "confirmation": self._confirmation(),
            "outcomes": outcomes,
        }

    def _rolled_back(self) -> Json:
        try:
            rollback = self.rollback()
        except LocalpuppetError:
            return None  # the next run reports the damage
        return None if rollback is None else {**rollback.to_public()}

    def _assignment(self) -> Json:
        try:
            assignment = self.assigned()
        except LocalpuppetError:
            return None  # the next run reports the damage
        return None if assignment is None else assignment.to_public()

    def _confirmation(self) -> Json:
        confirmation = self.confirmation()
        return None if confirmation is None else {**confirmation}

    def last_run(self) -> Mapping[str, Json]:
        """Return the published record of the last finished run, empty before the first run."""
        last = next(self.records.finished(), None)
        return {} if last is None else published(last).to_dict()

    def durations(self) -> list[Json]:
        """Return the seconds that the last successful complete runs took, newest first."""
        newest = islice(self.records.history(), LOOKED_AT)
        good = (status.seconds for status in newest if status.good and status.seconds is not None)
        return [*islice(good, DURATIONS)]

    def report(self, run: RunId | None) -> Mapping[str, Json]:
        """Return the published report of a run: its changes by resource; see `report_reply`.

        Raises:
            InvalidInputError: The run does not exist.
        """
        directory = self.records.get(run)
        return to_record(report_reply(directory, self.records.status(directory)))

    def log(self, run: RunId | None) -> Mapping[str, Json]:
        """Return the end of Puppet's log of a run; see `report` and `log_reply`."""
        directory = self.records.get(run)
        return log_reply(directory, self.records.status(directory))

    def _newest(self) -> RunEnd | None:
        """Return the end of the last run, or of an apply that was refused after it."""
        interval, attempt = self.run_interval, self.attempt()
        last = last_end(self.records, interval)
        refused = None if attempt is None else RunEnd.of_attempt(attempt, last, interval)
        return newest(filter(None, (refused, last)))

    def _release(self, last: RunEnd | None) -> Json:
        """Return the digest of the last run's release if it is staged."""
        if last is None:
            return None
        link = self.modules / ReleasePath(last.release)
        try:
            return link.readlink().name
        except OSError:
            return None
