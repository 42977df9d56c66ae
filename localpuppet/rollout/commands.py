"""The rollout commands: when they are possible, the event of each, and their way to the controller.

A new command is a member of `RolloutCommand`, its conditions in `refusal`, and its event in
`meaning`.

    the command is in the journal -> the process reads it -> its event is in the journal

Write access to the journal is the only permission that this needs.
"""

import asyncio
import hashlib
import json
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, ClassVar

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.base.formats.converter import AllowedRange, Key, Message
from localpuppet.base.formats.names import NodeName, RolloutId, SignerName, parse_uuid
from localpuppet.base.formats.text import parse_choice, parse_line, shown_names
from localpuppet.base.formats.times import show_time
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.fleet.bus import bus_limits, layout
from localpuppet.fleet.bus.key_value import KeyValue, RefusedError, entries
from localpuppet.fleet.requests import request_client
from localpuppet.fleet.requests.request import LIFE, Caller, answer, lifetime_problem, read_answer
from localpuppet.fleet.requests.request_client import Replies
from localpuppet.fleet.trust.seen import Quota
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner, Verifier
from localpuppet.rollout import events
from localpuppet.rollout.checkpoints import PublishedCheckpoint, RolloutCheckpoints
from localpuppet.rollout.journal import JournalReader, JournalWriter
from localpuppet.rollout.rollout_options import DIGITS, UnapprovedChange
from localpuppet.rollout.state import RolloutState

SCHEMA = 1
LOOK = 1.0  # seconds between two looks at the journal
AGAIN = 5.0  # seconds until the next attempt to watch an unreachable bus
# Commands that are remembered until they expire.
WORDS = Quota(shared=200, reserve=50, few=5, each=20)
PATIENCE = 20.0  # seconds for a reply
# Checkpoints lag behind: how often to look for a pause, and the seconds in between.
LOOKS, PACE = 5, 1.0


class RolloutCommand(StrEnum):
    STOP = "stop"
    PAUSE = "pause"
    CONTINUE = "continue"
    ROLLBACK = "rollback"
    APPROVE = "approve"


class SentCommand(Value):
    command: RolloutCommand
    caller: str
    machine: str
    # For `APPROVE`, the node and the digest of the approved difference, separated by a space; for
    # `CONTINUE`, the pause that it ends; empty for other commands.
    about: str = ""

    @property
    def who(self) -> str:
        """The operator and their machine."""
        return f"{self.caller} on {self.machine}"


def refusal(sent: SentCommand, state: RolloutState) -> str:
    """Return why a command is not possible in a state, one line; empty if it is."""
    if state.over is not None:
        return f"is over: {state.over.ending}"
    if state.stopped is not None:
        return f"is already ending: {state.stopped.reason}"
    if sent.command is RolloutCommand.APPROVE:
        return "" if _approved(sent, state) else _not_differing(sent, state)
    if sent.command is RolloutCommand.PAUSE and state.paused is not None:
        return f"is already paused: {state.paused.reason}"
    if sent.command is RolloutCommand.CONTINUE:
        if state.paused is None:
            return "is not paused"
        if state.differing and state.paused.needs_approval:
            nodes = shown_names(sorted(turn.node for turn in state.differing))
            return f"waits until what {nodes} would change is approved"
        if sent.about != identify_pause(state):
            return "paused again since then: check what it waits for now"
    if sent.command is RolloutCommand.ROLLBACK and state.began.options.delivery is None:
        return "delivers no release: there is nothing to roll back"
    return ""


def check_not_over(command: RolloutCommand, state: RolloutState) -> None:
    """Reject a command that comes after the end of a rollout, and name the command for that."""
    if state.over is None:
        return
    rollout, hint = state.began.id, "others: 'localpuppet rollout list'"
    if command is RolloutCommand.ROLLBACK and state.began.options.delivery is not None:
        (before,) = state.previous if len(state.previous) == 1 else ("APP/tags/OLD",)
        hint = (
            f"'localpuppet rollout run --release {before} --allow-older NODE…' takes nodes"
            f" back: 'localpuppet rollout report {rollout}' has their names"
        )
    elif state.resumable and command in (RolloutCommand.CONTINUE, RolloutCommand.APPROVE):
        hint = f"run 'localpuppet rollout resume {rollout}'"
    raise InvalidInputError(f"is over: {state.over.ending}", where=str(rollout), hint=hint)


def _approved(sent: SentCommand, state: RolloutState) -> events.NodeRun | None:
    """Return the node run whose difference is approved; `None` if no difference matches."""
    for turn, difference in state.differing.items():
        if sent.about == about(turn.node, difference):
            return turn
    return None


def _not_differing(sent: SentCommand, state: RolloutState) -> str:
    node = sent.about.partition(" ")[0]
    if not node:
        return "the approval names no node: approve it on the machine that controls the rollout"
    if any(turn.node == node for turn in state.differing):
        return f"the changes of {node} differ now: read the new difference"
    return f"{node} does not wait for an approval"


def about(node: NodeName, difference: UnapprovedChange) -> str:
    """Return the `about` of an approval."""
    return f"{node} {difference.digest}"


def identify_pause(state: RolloutState) -> str:
    """Return the number and the digest of the current pause; empty without one."""
    if state.paused is None:
        return ""
    text = json.dumps(events.to_dict(state.paused), sort_keys=True)
    return f"{state.pauses} {hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"


def meaning(sent: SentCommand, state: RolloutState) -> events.Event:
    """Return the event of a command that `refusal` accepts; a pause without its time."""
    if (turn := _approved(sent, state)) is not None:
        return events.ChangesApproved(
            node_run=turn, difference=state.differing[turn].digest, approved_by=sent.who
        )
    if sent.command is RolloutCommand.CONTINUE:
        return events.RolloutContinued(caller=sent.caller, machine=sent.machine)
    if sent.command is RolloutCommand.PAUSE:
        return events.RolloutPaused(reason=f"paused by {sent.who}", requested_by=sent.who)
    back = sent.command is RolloutCommand.ROLLBACK
    ending = events.RolloutEnding.ROLLED_BACK if back else events.RolloutEnding.STOPPED
    return events.RolloutStopped(
        ending=ending, reason=f"{ending} by {sent.who}", requested_by=sent.who
    )


_KNOWN = {str(command): command for command in RolloutCommand}
Take = Callable[[SentCommand], str]


def digest_of(timed: Sequence[events.TimedEvent]) -> str:
    """Return the digest of events in a journal: `sha256:` and hexadecimal digits."""
    text = json.dumps([[at, events.to_dict(event)] for at, event in timed], sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def parse_machine(text: str) -> str:
    if len(text) > bus_limits.MAX_MACHINE:
        raise InvalidInputError(
            f"is longer than {bus_limits.MAX_MACHINE} characters", where="machine"
        )
    return parse_line(text, what="machine")


def _command(text: str) -> RolloutCommand:
    update = "update localpuppet on the machine that controls the rollout"
    return parse_choice(RolloutCommand, text, what="a command that this version knows", hint=update)


class SignedCommand(Message):
    """A rollout command on the bus."""

    SCHEMA: ClassVar = SCHEMA
    WHERE: ClassVar = "command"
    LIMIT: ClassVar = bus_limits.MAX_COMMAND
    # The sender and the controller of the rollout (claims `iss` and `aud`).
    caller: Annotated[Caller, Key("iss")]
    receiver: Annotated[Caller, Key("aud")]
    iat: Annotated[int, AllowedRange(minimum=0)]
    exp: Annotated[int, AllowedRange(minimum=0)]
    jti: Annotated[str, parse_uuid]
    owner: Caller
    rollout: RolloutId
    epoch: Annotated[int, AllowedRange(minimum=1, maximum=bus_limits.MAX_EPOCH)]
    # How many events from the first the sender knew; 0 if the checkpoint had none.
    events: Annotated[int, AllowedRange(minimum=0, maximum=bus_limits.MAX_ROLLOUT_EVENTS)]
    digest: Annotated[str, partial(parse_line, what="digest")]  # their digest, see `digest_of`
    command: Annotated[RolloutCommand, _command]
    machine: Annotated[str, parse_machine]
    # What it refers to, see `SentCommand`; empty for most commands.
    about: Annotated[str, partial(parse_line, what="about")] = ""

    @property
    def sent_command(self) -> SentCommand:
        return SentCommand(
            command=self.command, caller=self.caller.caller, machine=self.machine, about=self.about
        )


def stale(
    spoken: SignedCommand, *, now: int, epoch: int, events: Sequence[events.TimedEvent]
) -> str:
    """Return why a command does not apply to a rollout as it is now, one line; empty if it does."""
    if problem := lifetime_problem(iat=spoken.iat, exp=spoken.exp, now=now):
        return problem
    if spoken.epoch != epoch:
        return f"was resumed: the command is for epoch {spoken.epoch}, this is {epoch}"
    known = events[: spoken.events]
    if (len(known), digest_of(known)) != (spoken.events, spoken.digest):
        return "continued in another way than the sender knows"
    return ""


async def read_commands(journal: JournalWriter, take: Take, *, machine: str) -> None:
    """Deliver the commands of users who can write the journal, on this machine, without an end.

    Commands of later versions are left out, so that they do not end the rollout.
    """
    last = 0
    while True:
        for number, word, caller, about in journal.commands_after(last):
            last = number
            if (command := _KNOWN.get(word)) is not None:
                take(SentCommand(command=command, caller=caller, machine=machine, about=about))
        await asyncio.sleep(LOOK)


@dataclass(slots=True, eq=False)
class BusCommandReader:
    """Receives commands from other machines.

    `denied` says why a signer other than the rollout's caller and its controller may not send them.
    """

    kv: KeyValue
    _: KW_ONLY
    signer: MessageSigner
    verifier: Verifier
    journal: JournalReader
    denied: Callable[[SignerName], str]
    clock: Clock
    # (sender, id) -> expiry
    _received: dict[tuple[SignerName, str], int] = field(default_factory=dict, init=False)

    async def read(self, take: Take) -> None:
        """Deliver commands without an end.

        Returns if the bus denies watching; the journal's commands still arrive.
        """
        prefix = layout.commands_to(self.signer.name)
        began = self.journal.state().began
        while True:
            try:
                watching = self.kv.watch(prefix, largest=bus_limits.MAX_ASKING, parts=True)
                async with aclosing(watching) as changes:
                    async for change in changes:
                        for entry in entries(change):
                            await self._receive_one(entry.value, began, take)
            except RefusedError:
                return
            except UnavailableError:
                await asyncio.sleep(AGAIN)

    async def _receive_one(self, token: bytes, began: events.RolloutBegan, take: Take) -> None:
        spoken = self._believed(token, began)
        if spoken is None:
            return
        problem = self._problem(spoken) or take(spoken.sent_command)
        result = problem or {"command": str(spoken.command)}
        reply = answer(self.signer, spoken, result, clock=self.clock)
        # The bus may deny a reply to this sender; the commands of others must still arrive.
        with suppress(RefusedError):
            await request_client.reply(
                self.kv, reply, caller=spoken.caller, node=self.signer.name, request=spoken.jti
            )

    def _believed(self, token: bytes, began: events.RolloutBegan) -> SignedCommand | None:
        """Return the command if it is signed by its sender, for this rollout, and new; else `None`.

        Other messages get no reply.
        """
        try:
            signed = self.verifier.verify(token, MessageKind.COMMAND)
            spoken = SignedCommand.parse(signed.payload)
        except LocalpuppetError:
            return None
        meant = (spoken.owner.caller, spoken.rollout) == (began.caller, began.id)
        if spoken.caller != signed.signer or spoken.receiver != self.signer.name or not meant:
            return None
        now = int(self.clock.now().timestamp())
        self._received = {which: until for which, until in self._received.items() if until > now}
        which = (spoken.caller, spoken.jti)
        own = sum(caller == spoken.caller for caller, _ in self._received)
        if which in self._received or not WORDS.has_room(own=own, total=len(self._received)):
            return None
        self._received[which] = min(spoken.exp, now + bus_limits.MAX_REQUEST_LIFE)
        return spoken

    def _problem(self, spoken: SignedCommand) -> str:
        """Return why a command is rejected, one line; empty if it is not."""
        if spoken.caller not in (self.signer.name, spoken.owner) and (
            denied := self.denied(spoken.caller)
        ):
            return denied
        now = int(self.clock.now().timestamp())
        events = self.journal.events()
        epoch = RolloutState.of(event for _, event in events).epoch
        return stale(spoken, now=now, epoch=epoch, events=events)


async def look(
    heads: RolloutCheckpoints, rollout: RolloutId | None, command: RolloutCommand
) -> PublishedCheckpoint:
    """Return the checkpoint of the rollout that a command is for, with the pause that it ends."""
    for _ in range(LOOKS):
        published = await heads.find(rollout)
        state = published.head.state
        if state is not None and state.epoch == published.head.epoch:  # not yet resumed
            check_not_over(command, state)
        if command not in (RolloutCommand.CONTINUE, RolloutCommand.APPROVE):
            return published
        if state is None:
            raise InvalidInputError(
                "has a journal that is too large for the bus, so this machine cannot show why it"
                " waits",
                where=str(published.head.rollout),
                hint=f"decide on the machine of {published.signer} that controls it, or stop it",
            )
        if state.waits:
            return published
        await asyncio.sleep(PACE)
    raise InvalidInputError("is not paused", where=str(published.head.rollout))


async def send_over_bus(
    kv: KeyValue,
    sent: SentCommand,
    *,
    owner: SignerName,
    to: PublishedCheckpoint,
    signer: MessageSigner,
    verifier: Verifier,
    clock: Clock,
) -> None:
    """Send a command in the signer's name and wait until the rollout's journal has it."""
    now = int(clock.now().timestamp())
    spoken = SignedCommand(
        caller=signer.name,
        receiver=to.signer,
        iat=now,
        exp=now + LIFE,
        jti=str(uuid.uuid4()),
        owner=owner,
        rollout=to.head.rollout,
        epoch=to.head.epoch,
        events=len(to.head.events),
        digest=digest_of(to.head.events),
        command=sent.command,
        machine=sent.machine,
        about=sent.about,
    )
    token = signer.sign(spoken.to_payload(), MessageKind.COMMAND)
    place = layout.commands_of(signer.name, to.signer) + f"{spoken.rollout}/{spoken.jti}"
    problem = f"its controller did not reply within {PATIENCE:g} s"
    try:
        async with (
            asyncio.timeout(PATIENCE),
            Replies(kv, signer.name, to.signer) as replies,
            aclosing(
                replies.ask(token, at=place, node=to.signer, request=spoken.jti, ttl=LIFE)
            ) as tokens,
        ):
            async for answer_token in tokens:
                try:
                    reply = read_answer(verifier, answer_token, spoken, clock=clock)
                except LocalpuppetError as error:
                    problem = f"rejected an untrusted reply: {error}"
                    continue
                if not reply.ok:
                    raise InvalidInputError(reply.error or "", where=str(spoken.rollout))
                return
    except TimeoutError:
        raise UnavailableError(
            problem,
            where=str(spoken.rollout),
            hint="its controller may be gone: its holds expire, and"
            " 'localpuppet rollout resume' continues it",
        ) from None


@dataclass(slots=True, eq=False)
class EventRecorder:
    """Records the events of a rollout with the time of writing, and receives commands for it."""

    journal: JournalWriter
    clock: Clock
    changed: Callable[[], None]
    sources: Sequence[Callable[[Take], Coroutine[Any, Any, None]]]

    def append(self, *events: events.Event) -> None:
        """Append events: all are on the disk afterwards, or none is and this raises."""
        self.journal.append(*events, at=show_time(self.now()))
        self.changed()

    def now(self) -> datetime:
        """Return the time that the next event gets, UTC."""
        return self.clock.now()

    async def hear(self, take: Take) -> None:
        """Deliver operators' commands, for as long as this is awaited.

        `take` returns why a command is rejected, or empty once it is recorded.
        """
        async with asyncio.TaskGroup() as group:
            for source in self.sources:
                group.create_task(source(take))


# Seconds until a command counts as not received. A controller reads no commands while it asks and
# holds nodes at its start, which takes less.
LOCAL_PATIENCE = 60.0
LOCAL_PACE = 0.25  # seconds between two looks


def _is_meant(expected: events.Event, event: events.Event) -> bool:
    """Return whether an event is the expected one, apart from the time of a pause."""
    if isinstance(expected, events.RolloutPaused) and isinstance(event, events.RolloutPaused):
        return replace(event, since=expected.since) == expected
    return event == expected


async def send_here(journal: JournalReader, sent: SentCommand) -> None:
    """Send a command and wait until its event is in the journal.

    Raises:
        InvalidInputError: It is rejected, or another decision came first.
        UnavailableError: The process ended, or did not read the command in time.
    """
    before = [event for _, event in journal.events()]
    state = RolloutState.of(before)
    where = str(state.began.id)
    if problem := refusal(sent, state):
        raise InvalidInputError(problem, where=where)
    expected = meaning(sent, state)
    journal.say(sent.command, sent.caller, sent.about)
    try:
        async with asyncio.timeout(LOCAL_PATIENCE):
            while True:
                await asyncio.sleep(LOCAL_PACE)
                taken = journal.taken  # before the look: what it wrote before it ended counts
                events = [event for _, event in journal.events()]
                if any(_is_meant(expected, event) for event in events[len(before) :]):
                    return
                if problem := refusal(sent, RolloutState.of(events)):
                    raise InvalidInputError(problem, where=where)
                if not taken:
                    raise UnavailableError(
                        "its controller ended before it received the command",
                        where=where,
                        hint=f"run 'localpuppet rollout resume {where}'",
                    )
    except TimeoutError:
        raise UnavailableError(
            f"its controller did not receive the command within {LOCAL_PATIENCE:g} s, but"
            " still may",
            where=where,
            hint=f"see 'localpuppet rollout status {where}'",
        ) from None
