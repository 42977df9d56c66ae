"""The confirmation of a deployed release: its waiting time, its file, and the way back.

    pending -> confirmed
            -> rolling back -> rolled back, or rollback failed
            -> superseded: a person has decided otherwise

- A changed clock neither makes a confirmation wait forever nor rolls a node back at once.
- Within a boot, the kernel's monotonic clock counts. It cannot be set, all processes share it, and
  it stops while the machine sleeps.
- After a reboot, the time of day gives the downtime, between zero and the whole waiting time. Then
  the monotonic clock of the new boot counts.
- For a release that a person deployed, the node confirms when it reads its own nonce back from the
  bus.
- For a release that a rollout deployed, the rollout's caller confirms. If no caller does so in time
  and the rollout no longer holds the node, reading the nonce back is enough.
- If the bus answered one new connection since the run, the release has not cut the node off. Then
  the node waits, without a limit.
- If no new connection had an answer for the whole confirmation time, and none has one now, the
  node is cut off. An agent that has just started looks for some seconds itself, because a network
  needs time after a reboot.
- If a rollback fails, the node tries it again after longer and longer pauses, up to a limit. Then a
  person has to look.

    decided -> the rollback is in force (in a child) -> a run of it -> its result

- After a kill these steps are repeated, until a run of the older release is on record.
"""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import ClassVar
from uuid import UUID, uuid5

from localpuppet.base.errors import StateError
from localpuppet.base.formats.converter import JsonRecord, to_record
from localpuppet.base.formats.json_file import read_record
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import checked_time, parse_time, show_duration, show_time
from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.base.machine.files import make_private, write_json
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.fleet.agent.agent import Agent, RequestedRunResult, WorkRunner
from localpuppet.fleet.triggers.cause import CauseKind, RunCause
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.node.enc.assignment import Assignment, identity
from localpuppet.node.releases.release_records import Rollback
from localpuppet.node.runs.holds import Hold, Holds, rollout_owner
from localpuppet.node.runs.run import RunState, Status
from localpuppet.node.runs.run_records import Records, RunDirectory

MAX_REASON = 300


class Stage(StrEnum):
    """The stages of a confirmation."""

    PENDING = "pending"
    CONFIRMED = "confirmed"
    ROLLING_BACK = "rolling back"
    ROLLED_BACK = "rolled back"  # the run of the older release was successful
    ROLLBACK_FAILED = "rollback failed"
    SUPERSEDED = "superseded"  # by another release, or by a person's rollback


class ConfirmationReport(Value):
    """A published confirmation; its nonce is empty if it cannot come back now."""

    stage: Stage | None = None
    nonce: str = ""
    reason: str = ""


def reported_confirmation(
    status: Mapping[str, Json], *, serial: int, rollout: str
) -> ConfirmationReport | None:
    """Return the confirmation of an assignment from a node's status; `None` if it needs none."""
    assignment, confirmation = (
        mapping_of(status.get("assignment")),
        mapping_of(status.get("confirmation")),
    )
    mine = (serial, rollout)
    asked = (assignment.get("serial"), assignment.get("rollout")) == mine
    if not asked or not assignment.get("confirm"):
        return None
    if (confirmation.get("serial"), confirmation.get("rollout")) != mine:
        return ConfirmationReport()
    try:
        stage = Stage(_text(confirmation, "stage"))
    except ValueError:
        return ConfirmationReport()
    return ConfirmationReport(
        stage=stage, nonce=_text(confirmation, "nonce"), reason=_text(confirmation, "reason")
    )


def _text(fields: Mapping[str, Json], key: str) -> str:
    value = fields.get(key)
    return one_line(value)[:MAX_REASON] if isinstance(value, str) else ""


OPEN = (Stage.PENDING, Stage.ROLLING_BACK)


class Instant(Value):
    """A moment by both clocks: the monotonic one of a boot, and the time of day in ISO 8601."""

    boot: str
    monotonic: float
    at: str

    def __post_init__(self) -> None:
        """Check the time of day."""
        checked_time(self.at)


class Confirmation(JsonRecord):
    """The confirmation of a deployed release after its first run.

    Attributes:
        by: The caller id that assigned the release.
        rollout: The rollout that assigned it; empty for a person.
        run: The first finished run of the release.
        nonce: The UUID that has to come back through the bus, `within` seconds after `since`.
        reached: Whether a new connection had an answer since: the release has not cut this node
            off.
        newest: The newest run when the node decided to roll back, then the newest failed run of the
            older release; empty before.
    """

    SCHEMA: ClassVar = 1
    serial: int
    release: str
    by: str
    rollout: str
    run: str
    nonce: str
    within: float
    since: Instant
    reached: bool = False
    stage: Stage = Stage.PENDING
    reason: str = ""
    newest: str = ""
    tries: int = 0

    def is_of(self, assignment: Assignment) -> bool:
        """Return whether this confirmation is for an assignment; serials may restart."""
        matches: bool = identity(self) == identity(assignment)
        return matches

    @property
    def silence(self) -> str:
        """Return why this node rolls back."""
        return f"no connection to the bus for {show_duration(self.within)}"

    def concerns(self, *, rolled_back: bool) -> bool:
        """Return whether a person who looks at the node should see the confirmation."""
        return self.stage in (*OPEN, Stage.ROLLBACK_FAILED) or (
            rolled_back and self.stage is not Stage.CONFIRMED
        )

    def carried(self, now: Instant) -> "Confirmation":
        """Return the confirmation with its waiting time continued in the boot of `now`."""
        if self.since.boot == now.boot:
            return self
        passed = (parse_time(now.at) - parse_time(self.since.at)).total_seconds()
        passed = min(max(passed, 0.0), self.within)
        since = Instant(boot=now.boot, monotonic=now.monotonic - passed, at=self.since.at)
        return replace(self, since=since)

    def waited(self, now: Instant) -> float:
        """Return the seconds that it has waited; `now` is of the same boot."""
        return max(now.monotonic - self.since.monotonic, 0.0)

    def to_public(self) -> dict[str, Json]:
        """Return the published part; the nonce is published separately, when it can come back."""
        return {
            "serial": self.serial,
            "release": self.release,
            "rollout": self.rollout,
            "run": self.run,
            "stage": str(self.stage),
            "since": self.since.at,
            "within": self.within,
            "reason": self.reason,
        }

    def __str__(self) -> str:
        return f"{self.release}: {self.stage}{f' ({self.reason})' if self.reason else ''}"


class ConfirmationMemory:
    """The stored confirmation, which survives kills and reboots."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._file = state / "confirmation.json"

    def read(self) -> Confirmation | None:
        """Return the confirmation; `None` before the first."""
        hint = "move it away: the node then starts a new confirmation"
        return read_record(self._file, Confirmation.from_dict, hint=hint)

    def write(self, confirmation: Confirmation) -> None:
        """Write the confirmation durably."""
        make_private(self._state)
        write_json(self._file, to_record(confirmation))


def is_confirmed(state: Path, assignment: Assignment) -> bool:
    """Return whether an assignment is confirmed; a damaged file means that it is not."""
    try:
        confirmation = ConfirmationMemory(state).read()
    except StateError:  # the agent reports the damage
        return False
    if confirmation is None or not confirmation.is_of(assignment):
        return False
    return confirmation.stage is Stage.CONFIRMED


# The number of rollback attempts, and the seconds after the first failure; each later pause is
# twice as long.
TRIES = 5
FIRST_PAUSE = 30.0
SETTLING = 20.0  # seconds for which an agent looks itself before it decides that the bus is silent


def pause_after(failed: int) -> float | None:
    """Return the seconds until the next rollback attempt; `None` for no further attempt."""
    return None if failed >= TRIES else FIRST_PAUSE * 2 ** (failed - 1)


class BusContact(StrEnum):
    """What the last look at the bus had as an answer, the best first."""

    READ_BACK = "read back"  # a new connection succeeded, and the bus returned this node's nonce
    CONNECTED = "connected"  # an address of the bus answers
    NOTHING = "nothing"


class ConfirmationDecision(StrEnum):
    """What the node does next."""

    CONFIRMED = "confirmed"
    WAIT = "wait"
    UNHEARD = "unheard"  # wait, and report that the caller is silent
    UNSERVED = "unserved"  # wait, hold the node, and report that the bus does not serve
    CUT_OFF = "cut off"  # roll back


class ConfirmationState(Value):
    """The facts for a decision.

    Attributes:
        reached: Whether a new connection had an answer, now or earlier.
        looked: Seconds for which this agent has looked without an answer.
        held: Whether the rollout that deployed the release holds the node.
    """

    reach: BusContact
    waited: float
    reached: bool
    looked: float
    by_rollout: bool
    held: bool


def decide(sight: ConfirmationState, *, within: float) -> ConfirmationDecision:
    """Return the verdict on a release that is not confirmed within `within` seconds."""
    late = sight.waited >= within
    if sight.reach is BusContact.READ_BACK:
        if not sight.by_rollout or (late and not sight.held):
            return ConfirmationDecision.CONFIRMED
        return ConfirmationDecision.UNHEARD if late else ConfirmationDecision.WAIT
    if not late:
        return ConfirmationDecision.WAIT
    if sight.reached or sight.reach is not BusContact.NOTHING:
        return ConfirmationDecision.UNSERVED
    return (
        ConfirmationDecision.CUT_OFF
        if sight.looked >= min(SETTLING, within)
        else ConfirmationDecision.WAIT
    )


LOOK = 5.0  # seconds between two checks whether a run has ended
AGAIN = 30.0  # seconds until a requested run that has not begun is requested again
BUSY_AGAIN = 2.0  # seconds until the next attempt if the store is locked


HOLD = 600.0  # seconds until a hold expires without renewal


class RetreatOrder(Value):
    """The rollback that a child process puts in force."""

    left: Assignment
    because: str


def _name(confirmation: Confirmation) -> str:
    """Return the id of the requested run of this attempt."""
    return (
        str(uuid5(UUID(confirmation.nonce), str(confirmation.tries)))
        if confirmation.tries
        else confirmation.nonce
    )


def first_run(records: Records, assignment: Assignment) -> Status | None:
    """Return the first finished run of an assignment that was not a noop run."""
    first = None
    for status in records.history():
        if status.id <= assignment.after:
            break
        if (
            status.state is not RunState.FINISHED
            or status.noop
            or status.release != assignment.release
        ):
            continue
        try:
            request = RunDirectory(records.directory / status.id).read_request()
        except FileNotFoundError:  # it was pruned meanwhile
            continue
        assigned = request.get("assignment")
        if isinstance(assigned, dict) and assigned.get("serial") == assignment.serial:
            first = status
    return first


@dataclass(slots=True, eq=False)
class ReturnRoute:
    """Rolls this node back, one step after the other: `runner` puts the rollback in force."""

    runner: WorkRunner[RetreatOrder]
    _: KW_ONLY
    agent: Agent
    inbox: Inbox
    records: Records
    holds: Callable[[], Holds]
    assigned: Callable[[], Assignment | None]
    rollback: Callable[[], Rollback | None]
    clock: Clock
    # The nonce for which the rollback was put in force.
    _in_force: str = field(default="", init=False)
    # The number of failed attempts when a run was requested.
    _asked: int = field(default=-1, init=False)
    _due: float = field(default=0.0, init=False)  # when the next attempt is due; 0 if unknown

    async def step(self, confirmation: Confirmation) -> tuple[Confirmation, float]:
        """Execute the next step.

        Returns:
            The updated confirmation, and the seconds until the next step.
        """
        if self._in_force != confirmation.nonce:
            left = self._due - self.clock.monotonic()
            if confirmation.tries and left > 0:
                return confirmation, left
            return await self._put_in_force(confirmation)
        rollback = self.rollback()
        if rollback is None or rollback.serial != confirmation.serial:
            return replace(
                confirmation, stage=Stage.SUPERSEDED, reason="the rollback was replaced or removed"
            ), 0.0
        runs = self._runs(confirmation, rollback)
        if runs and runs[0].good:
            return replace(confirmation, stage=Stage.ROLLED_BACK, reason=confirmation.silence), 0.0
        if runs:
            confirmation = replace(
                confirmation, newest=runs[0].id, tries=confirmation.tries + len(runs)
            )
            confirmation = self._after(
                confirmation, f"its run of {rollback.release} {runs[0].outcome}"
            )
            if confirmation.stage is not Stage.ROLLING_BACK:
                return confirmation, 0.0
        now = self.clock.monotonic()
        if now < self._due or self.agent.is_running:
            return confirmation, LOOK
        if self._asked == confirmation.tries and not self._waits(confirmation):
            confirmation = replace(confirmation, tries=confirmation.tries + 1)
            return self._after(confirmation, f"its run of {rollback.release} did not begin"), 0.0
        self._ask_for_run(confirmation)
        self._asked, self._due = confirmation.tries, now + AGAIN
        return confirmation, LOOK

    def is_back(self, confirmation: Confirmation) -> bool:
        """Return whether the last run of the older release was good after all."""
        rollback = self.rollback()
        if rollback is None or rollback.serial != confirmation.serial:
            return False
        runs = self._runs(confirmation, rollback)
        return bool(runs) and runs[0].good

    async def _put_in_force(self, confirmation: Confirmation) -> tuple[Confirmation, float]:
        assignment = self.assigned()
        if assignment is None:
            return confirmation, LOOK
        end = await self.runner.run(
            RetreatOrder(left=assignment, because=f"this node: {confirmation.silence}")
        )
        if end.result is RequestedRunResult.BUSY:
            return confirmation, BUSY_AGAIN
        if end.result is not RequestedRunResult.OVER:
            return self._after(replace(confirmation, tries=confirmation.tries + 1), end.reason), 0.0
        begun = bool(confirmation.tries) and not self._due  # an earlier agent began to wait
        pause = pause_after(confirmation.tries) if begun else None
        self._due = self.clock.monotonic() + (pause or 0.0)
        self._in_force, self._asked = confirmation.nonce, -1
        return await self.step(confirmation)

    def _after(self, confirmation: Confirmation, failure: str) -> Confirmation:
        """Return the confirmation after a failed attempt, and schedule the next one."""
        pause = pause_after(confirmation.tries)
        if pause is None:
            why = f"{confirmation.silence}; {failure}, after {TRIES} attempts"
            return replace(confirmation, stage=Stage.ROLLBACK_FAILED, reason=why)
        self._due = self.clock.monotonic() + pause
        again = f"try {confirmation.tries + 1} of {TRIES} in {show_duration(pause)}"
        return replace(confirmation, reason=f"{confirmation.silence}; {failure}, {again}")

    def _runs(self, confirmation: Confirmation, rollback: Rollback) -> list[Status]:
        """Return the finished runs of the older release that are not counted yet, newest first."""
        return [
            status
            for status in takewhile(
                lambda status: status.id > confirmation.newest, self.records.history()
            )
            if status.state is RunState.FINISHED
            and not status.noop
            and status.release == rollback.release
        ]

    def _ask_for_run(self, confirmation: Confirmation) -> None:
        """Request a run unless one is in progress or waits; repeated requests count once.

        A rollout's hold does not stop this run, because it is a run of that rollout. A person's
        hold does. Each attempt has its own id.
        """
        owner = self.owner(confirmation)
        if confirmation.rollout and any(hold.owner == owner for hold in self.holds().active()):
            self.hold(
                confirmation, f"rollout {confirmation.rollout}: goes back, {confirmation.silence}"
            )
            now = int(self.clock.now().timestamp())
            cause = RunCause(
                kind=CauseKind.ROLLOUT,
                sender=owner,
                uuid=_name(confirmation),
                timestamp=now,
                expires=None,
            )
            self.inbox.accept([(cause, now)])
            self.agent.take_step(cause)
        elif self.agent.waiting is None:
            self.agent.request_run(CauseKind.CONFIRMATION)

    def _waits(self, confirmation: Confirmation) -> bool:
        """Return whether the requested run waits for a hold to end or for another run."""
        name = _name(confirmation)
        asked = any(cause.uuid == name for cause in self.inbox.causes())
        return asked or self.agent.waiting is not None

    def owner(self, confirmation: Confirmation) -> str:
        """Return the owner of the hold for an unconfirmed release: its rollout, if it has one."""
        if confirmation.rollout:
            return rollout_owner(confirmation.by, confirmation.rollout)
        return f"{confirmation.by}/confirmation"

    def hold(self, confirmation: Confirmation, reason: str) -> None:
        """Hold this node for some minutes, unless a hold of the same owner lasts long enough."""
        now, owner = self.clock.now(), self.owner(confirmation)
        mine = [hold for hold in self.holds().active() if hold.owner == owner]
        half = now + timedelta(seconds=HOLD / 2)
        if any(hold.until is None or parse_time(hold.until) >= half for hold in mine):
            return
        since = next((hold.since for hold in mine), show_time(now))
        until = show_time(now + timedelta(seconds=HOLD))
        self.holds().add(Hold(owner=owner, reason=reason, since=since, until=until))

    def let_go(self, confirmation: Confirmation) -> None:
        """Remove the hold of `hold`; only the rollout removes a rollout's hold."""
        owner = self.owner(confirmation)
        if not confirmation.rollout and any(hold.owner == owner for hold in self.holds().active()):
            self.holds().remove(owner)
