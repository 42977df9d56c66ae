"""Confirm a deployed release by a new connection to the bus, or roll this node back.

- A connection from before the run does not count. It would hide a firewall that drops new
  connections only.
- An engine without servers (a file on this machine) cannot be cut off: its answer counts even if it
  is an error.

    a run of the release has ended -> look -> decide -> (look …)* -> confirmed, or back

- Each decision is on the disk before the node acts on it, so a kill or a reboot changes nothing.
- Only a disk error ends the agent from here.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial

from localpuppet.base.errors import LocalpuppetError, StateError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.times import show_time
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import LineKind, Log, Processes
from localpuppet.base.machine.waiting import run_until, wait_first
from localpuppet.fleet.agent.confirmation import (
    OPEN,
    BusContact,
    Confirmation,
    ConfirmationDecision,
    ConfirmationMemory,
    ConfirmationState,
    Instant,
    ReturnRoute,
    Stage,
    decide,
    first_run,
)
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import PRESENCE
from localpuppet.fleet.inventory.presence import believe
from localpuppet.fleet.requests.request import Deploy
from localpuppet.fleet.trust.signing import Verifier
from localpuppet.node.enc.assignment import Assignment

Store = Callable[[], Awaitable[KeyValue]]
# Returns whether a server of the bus, or its machine, answers a new connection.
Answers = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class BusProbe:
    """Looks at the bus; `answers` is `None` for an engine without servers."""

    me: NodeName
    _: KW_ONLY
    store: Store
    verifier: Verifier
    answers: Answers | None

    async def new_connection(self) -> bool:
        """Return whether an address of the bus answers a new connection."""
        return self.answers is None or await self.answers()

    async def read_back(self, nonce: str) -> BusContact:
        """Return whether the bus returns this node's presence with a nonce, or answers at all."""
        try:
            kv = await self.store()
            entry = await kv.get(f"{PRESENCE}{self.me}")
        except UnavailableError:
            return BusContact.NOTHING
        if entry is None:
            return BusContact.CONNECTED
        confirmation = believe(self.verifier, self.me, entry.value).get("confirmation")
        same = isinstance(confirmation, dict) and bool(nonce) and confirmation.get("nonce") == nonce
        return BusContact.READ_BACK if same else BusContact.CONNECTED

    async def look(self, nonce: str) -> tuple[BusContact, bool]:
        """Return the answer of the bus, and whether a new connection succeeded."""
        fresh = await self.new_connection()
        contact = await self.read_back(nonce)
        if fresh:
            return max(contact, BusContact.CONNECTED, key=_BEST.index), True
        return min(contact, BusContact.CONNECTED, key=_BEST.index), False


_BEST = (BusContact.NOTHING, BusContact.CONNECTED, BusContact.READ_BACK)


# Seconds between two looks, short at first, because most releases do not cut the node off.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
COMMAND_TIMEOUT = 60.0  # seconds for a `confirm_command`
MAX_OUTPUT = 64 * 1024
AGAIN = 30.0  # seconds until the next attempt after a disk error
_OLD_CONNECTION = "an old connection to the bus still works, but no new one is answered"
_ANOTHER = "the assignment was replaced or removed"
_UNSERVED = "the bus does not answer any node, so this node is not cut off"
DONE: Mapping[str, Json] = {"state": "confirmed"}


async def ask_command(
    command: Sequence[str],
    processes: Processes,
    *,
    env: Mapping[str, str],
    log: Log,
) -> bool:
    """Call the site's `confirm_command`; exit code 0 means that this node is online."""
    run = partial(processes.capture, command, env=env, timeout=COMMAND_TIMEOUT, limit=MAX_OUTPUT)
    try:
        output = await asyncio.to_thread(run)
    except StateError as error:
        log.warning(f"confirm_command: {error}", kind=LineKind.RUN)
        return False
    return output is not None and output.ended.code == 0


@dataclass(slots=True, eq=False)
class Confirming:
    """The confirmation of the release that was deployed on this node.

    `late` is called with whether a confirmation is overdue, for monitoring. `command` is the site's
    `confirm_command`, and returns whether there is a connection.
    """

    memory: ConfirmationMemory
    _: KW_ONLY
    boot: str
    late: Callable[[bool], None]
    command: Callable[[], Awaitable[bool]] | None
    looking: BusProbe
    back: ReturnRoute
    log: Log
    # Whether a new connection succeeded for the pending release.
    _fresh: bool = field(default=False, init=False)
    _blind: float | None = field(default=None, init=False)  # since when no look had an answer
    _pause: float = field(default=FIRST_PAUSE, init=False)
    # The nonce of the release that this agent is leaving.
    _leaving: str = field(default="", init=False)
    _logged: str = field(default="", init=False)

    async def keep(self, leave: asyncio.Event) -> None:
        """Watch the pending confirmation until `leave` is set."""
        await run_until(leave, self._keep())  # the next agent repeats an interrupted look

    async def _keep(self) -> None:
        changed = self.back.agent.subscribe()
        await self.looking.new_connection()  # caches the addresses of the bus while names resolve
        while True:
            changed.clear()
            pause = await self.step()
            await wait_first(changed, seconds=pause)

    async def step(self) -> float | None:
        """Execute the next step; return the seconds until the next look, `None` for no look."""
        try:
            confirmation = self._current()
            if confirmation is None:
                return None
            if confirmation.stage is Stage.ROLLBACK_FAILED and self.back.is_back(confirmation):
                confirmation = self._settle(
                    replace(confirmation, stage=Stage.ROLLED_BACK, reason=confirmation.silence)
                )
            if confirmation.stage not in OPEN:
                return None
            if confirmation.stage is Stage.ROLLING_BACK:
                return await self._go_back(confirmation)
            return await self._look(confirmation)
        except LocalpuppetError as error:
            self._say(f"the confirmation of a release: {error}")
            return AGAIN

    def report(self) -> Mapping[str, Json] | None:
        """Return the published state, with the nonce as soon as the nonce can come back."""
        try:
            confirmation = self.memory.read()
        except LocalpuppetError:
            return None  # `step` reports the damage
        if confirmation is None:
            return None
        nonce = confirmation.nonce if self._fresh and confirmation.stage is Stage.PENDING else ""
        return {**confirmation.to_public(), "nonce": nonce}

    def answer(self, caller: str, args: Deploy) -> Mapping[str, Json] | str:
        """Accept a caller's confirmation that the nonce came back, or return why not."""
        confirmation = self._current()
        rollout = args.rollout
        if rollout is None:
            return "only a rollout sends confirmations; without one, a node confirms by itself"
        asked = (args.serial, args.release, rollout.caller or caller, rollout.id)
        if confirmation is None or asked != (
            confirmation.serial,
            confirmation.release,
            confirmation.by,
            confirmation.rollout,
        ):
            return "no release of this rollout waits for a confirmation on this node"
        if confirmation.nonce != args.nonce:
            return "the nonce differs from the one that this node waits for"
        if confirmation.stage is Stage.CONFIRMED:
            return DONE
        if confirmation.stage is not Stage.PENDING:
            return f"it is no longer pending: {confirmation}"
        if not self._fresh:
            return "this node could not make a new connection to the bus yet"
        self._settle(replace(confirmation, stage=Stage.CONFIRMED, reason=""))
        return DONE

    def _now(self) -> Instant:
        return Instant(
            boot=self.boot,
            monotonic=self.back.clock.monotonic(),
            at=show_time(self.back.clock.now()),
        )

    def _current(self) -> Confirmation | None:
        """Return the confirmation of the release in force, which begins when a run has ended."""
        held, assignment = self.memory.read(), self.back.assigned()
        if held is not None and (assignment is None or not held.is_of(assignment)):
            # The node no longer needs a hold or an alarm for the old release.
            if held.stage in (*OPEN, Stage.ROLLBACK_FAILED):
                self._settle(replace(held, stage=Stage.SUPERSEDED, reason=_ANOTHER))
            held = None
        if assignment is None or not assignment.confirm:
            return None
        if held is not None:
            return self._carried(held, assignment)
        run = first_run(self.back.records, assignment)
        if run is None:
            return None
        begun = Confirmation(
            serial=assignment.serial,
            release=str(assignment.release),
            by=assignment.by,
            rollout=assignment.rollout,
            run=run.id,
            nonce=str(uuid.uuid4()),
            within=assignment.confirm,
            since=self._now(),
        )
        self.memory.write(begun)
        self._fresh, self._blind, self._pause = False, None, FIRST_PAUSE
        self.back.agent.recheck()
        return begun

    def _carried(self, held: Confirmation, assignment: Assignment) -> Confirmation:
        """Return the stored confirmation, updated if a person has decided on the release since."""
        if held.stage not in OPEN:
            return held
        confirmation = held.carried(self._now())
        if confirmation != held:
            self.memory.write(confirmation)
        rollback = self.back.rollback()
        decided = rollback is not None and rollback.serial == assignment.serial
        if rollback is None or not decided or confirmation.stage is not Stage.PENDING:
            return confirmation
        why = f"rolled back by {rollback.user}"
        return self._settle(replace(confirmation, stage=Stage.SUPERSEDED, reason=why))

    async def _look(self, confirmation: Confirmation) -> float | None:
        """Look at the bus and act on it; return the seconds until the next look."""
        reach, fresh = await self.looking.look(confirmation.nonce)
        confirmation = self._note_reached(confirmation, fresh=fresh, reached=fresh)
        verdict = self._verdict(confirmation, reach)
        command = self.command
        if verdict is ConfirmationDecision.CUT_OFF and command is not None:
            self._say(f"{confirmation.release}: {confirmation.silence}, asking confirm_command")
            connected = await command()
            reach, fresh = await self.looking.look(confirmation.nonce)
            confirmation = self._note_reached(confirmation, fresh=fresh, reached=fresh or connected)
            verdict = self._verdict(confirmation, reach)
        if not self._is_open(confirmation):
            return 0.0
        self._act(confirmation, verdict)
        pause = self._pause
        self._pause = min(2 * pause, LONGEST_PAUSE)
        return pause

    def _note_reached(
        self, confirmation: Confirmation, *, fresh: bool, reached: bool
    ) -> Confirmation:
        """Record durably that the node is connected, and that it may publish the nonce.

        Args:
            fresh: Whether a new connection had an answer.
            reached: The same, or whether the site's own command reports a connection.
        """
        if reached and not confirmation.reached and self._is_open(confirmation):
            confirmation = replace(confirmation, reached=True)
            self.memory.write(confirmation)
        if fresh and not self._fresh:
            self._fresh = True
            self.back.agent.recheck()
        return confirmation

    def _is_open(self, confirmation: Confirmation) -> bool:
        """Return whether the confirmation is still undecided after the look."""
        now = self._current()
        return now is not None and (now.nonce, now.stage) == (
            confirmation.nonce,
            confirmation.stage,
        )

    def _verdict(self, confirmation: Confirmation, reach: BusContact) -> ConfirmationDecision:
        now = self.back.clock.monotonic()
        if reach is not BusContact.NOTHING:
            self._blind = None
        elif self._blind is None:
            self._blind = now
        owner = self.back.owner(confirmation)
        sight = ConfirmationState(
            reach=reach,
            waited=confirmation.waited(self._now()),
            reached=confirmation.reached,
            looked=0.0 if self._blind is None else now - self._blind,
            by_rollout=bool(confirmation.rollout),
            held=any(hold.owner == owner for hold in self.back.holds().active()),
        )
        return decide(sight, within=confirmation.within)

    def _act(self, confirmation: Confirmation, verdict: ConfirmationDecision) -> None:
        if verdict is ConfirmationDecision.CONFIRMED:
            why = (
                "by this node, because the rollout sent no confirmation"
                if confirmation.rollout
                else ""
            )
            self._settle(replace(confirmation, stage=Stage.CONFIRMED, reason=why))
        elif verdict is ConfirmationDecision.CUT_OFF:
            newest = next(iter(self.back.records.ids()), "")
            back = replace(
                confirmation, stage=Stage.ROLLING_BACK, reason=confirmation.silence, newest=newest
            )
            self.memory.write(back)
            self._say(f"{back.release}: {back.reason}; rolling back")
            self._begin_to_go_back(back)
        elif verdict is ConfirmationDecision.UNHEARD:
            self._wait(
                confirmation, f"the bus answers, but rollout {confirmation.rollout} does not answer"
            )
        elif verdict is ConfirmationDecision.UNSERVED:
            why = _UNSERVED if confirmation.reached else _OLD_CONNECTION
            self._wait(confirmation, why)
            self.back.hold(confirmation, f"{confirmation.release} is not confirmed: {why}")

    def _wait(self, confirmation: Confirmation, why: str) -> None:
        """Continue to wait for an overdue confirmation, and log each reason once."""
        if confirmation.reason != why:
            self.memory.write(replace(confirmation, reason=why))
            self._say(f"{confirmation.release} is not confirmed: {why}; waiting")
            self.late(True)
            self.back.agent.recheck()

    def _begin_to_go_back(self, confirmation: Confirmation) -> None:
        """Remove this node's own hold, which would block the rollback's run, and notify others."""
        self.late(True)
        self.back.let_go(confirmation)
        self.back.agent.recheck()

    async def _go_back(self, confirmation: Confirmation) -> float | None:
        """Continue the rollback; return the seconds until the next look."""
        if self._leaving != confirmation.nonce:  # an agent that was killed may not have done this
            self._begin_to_go_back(confirmation)
            self._leaving = confirmation.nonce
        then, pause = await self.back.step(confirmation)
        if then == confirmation:
            return pause
        if not self._is_open(confirmation):
            return 0.0
        if then.stage is not Stage.ROLLING_BACK:
            self._settle(then)
            return None
        self.memory.write(then)
        self._say(str(then))
        self.back.agent.recheck()
        return pause

    def _settle(self, confirmation: Confirmation) -> Confirmation:
        """Record the result and publish it."""
        self.memory.write(confirmation)
        self._fresh = False
        self._say(str(confirmation), good=confirmation.stage is Stage.CONFIRMED)
        self.back.let_go(confirmation)
        self.late(confirmation.stage is Stage.ROLLBACK_FAILED)
        self.back.agent.recheck()
        return confirmation

    def _say(self, text: str, *, good: bool = False) -> None:
        if text != self._logged:
            say = self.log.info if good else self.log.warning
            say(text, kind=LineKind.RUN)
        self._logged = text
