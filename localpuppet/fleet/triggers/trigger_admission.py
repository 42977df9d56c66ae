"""Admission: whether this node accepts a signed trigger, and the chain that it came along.

The checks have a fixed order, so that each message has one reason. docs/reference/triggers.md has
the table.

- A bad message raises nothing.
- Before the signature is verified, only the claimed sender is used, to verify it.
- A reason is one printable line.

Why every chain ends, also with several causes in one run:

1. A path grows by one node with each message, has no node twice, and has at most nine nodes
   (`MAX_HOPS` + 1). So a message has at most eight successors in a row.
2. The path of a message is that of *one* cause of the run, plus this node. A run with the cause `c`
   alone would also send what it sends for `c`; mixing causes adds no path.
3. Only a cause that begins a chain (timer, manual, request: the path `()`) lets a run begin a new
   one, `(me,)`, and that run settles it. A trigger never becomes a beginning: if b's timer
   coincides with a's trigger, b's message to a, `(b,)`, belongs to the timer, and a's answer to it
   ends at b, because b is in its path.

So a chain lasts no longer than its beginning allows, and beginnings come from clocks and people,
not from messages: at most one for each period and node. A crash may repeat a run (its causes were
not settled), with the same paths.

- The signature is checked over the same bytes that are parsed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from localpuppet.base.errors import IntegrityError, InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_HOPS, MAX_SKEW, MAX_TRIGGER_TTL
from localpuppet.fleet.history.node_history import Auditor
from localpuppet.fleet.triggers.cause import RunCause, Trigger
from localpuppet.fleet.trust.signing import MessageKind, Verifier, claimed_payload


class AdmittedTrigger(Value):
    """A trigger that leads to a run.

    `cause.id` must be remembered durably until `remember_until`, by the local clock: otherwise the
    same message could be admitted again.
    """

    cause: RunCause
    remember_until: int


class DroppedTrigger(Value):
    """A trigger that leads to no run.

    Attributes:
        quiet: Whether it is normal and frequent: log it for debugging only.
        trigger: The trigger, if it could be read; not to be trusted unless `signed`.
    """

    reason: str
    quiet: bool = False
    trigger: Trigger | None = None
    signed: bool = False


class Admission(Value):
    """The admission rules of one node."""

    me: NodeName
    trigger_refusal: Callable[[NodeName], str | None]
    seen: Callable[[str], bool]

    def admit(
        self, payload: bytes, *, now: float, signer: Callable[[], str]
    ) -> AdmittedTrigger | DroppedTrigger:
        """Decide on one message.

        Args:
            payload: Exactly the signed bytes.
            signer: Returns the name with a valid signature of the payload, or raises
                `LocalpuppetError`. Called only for a well-formed trigger: a flood of malformed
                messages costs no cryptography.
        """
        try:
            trigger = Trigger.parse(payload)
        except InvalidInputError as error:
            return DroppedTrigger(reason=one_line(str(error)))
        cause = RunCause.of_trigger(trigger)
        problems = self._problems(trigger, cause, int(now), signer)
        for number, (reason, quiet) in enumerate(problems):
            if reason:
                # The signature is the first check.
                return DroppedTrigger(
                    reason=one_line(reason), quiet=quiet, trigger=trigger, signed=number > 0
                )
        last = trigger.timestamp + trigger.ttl
        return AdmittedTrigger(cause=cause, remember_until=last + MAX_SKEW + 1)

    def _problems(
        self, trigger: Trigger, cause: RunCause, now: int, signer: Callable[[], str]
    ) -> Iterator[tuple[str | None, bool]]:
        """Yield reasons in the order of the checks, or `None`, and whether each is quiet."""
        yield _signature_problem(trigger, signer), False
        yield _age_problem(trigger, now), False
        if self.me not in trigger.hosts:
            yield f"not addressed to {self.me}", True
        if refusal := self.trigger_refusal(trigger.hostname):
            yield f"not allowed to trigger this node: {refusal}", False
        yield _path_problem(trigger), False
        if self.me in trigger.path:
            path = show_path(trigger.path)
            yield f"the loop ends here: {self.me} is in the path {path}", False
        # Messages arrive at least once, and again whenever the bus is read again.
        if self.seen(cause.id):
            yield f"a duplicate: uuid {cause.uuid} was accepted before", True


def show_path(path: tuple[NodeName, ...]) -> str:
    """Return a path as `a -> b`."""
    return " -> ".join(path)


def _signature_problem(trigger: Trigger, signer: Callable[[], str]) -> str | None:
    try:
        name = signer()
    except LocalpuppetError as error:
        return f"no valid signature: {error}"
    if name != trigger.hostname:
        return f"the signature is {name}'s, but the trigger says it is from {trigger.hostname}"
    return None


def _age_problem(trigger: Trigger, now: int) -> str | None:
    # Whole seconds on both sides: a timestamp has no fractions, which favours the sender.
    age = now - trigger.timestamp
    if age > trigger.ttl:
        return f"expired: {age} s old, its ttl is {trigger.ttl} s (check both clocks)"
    if -age > MAX_SKEW:
        return f"its time is {-age} s in the future (check both clocks)"
    if not 1 <= trigger.ttl <= MAX_TRIGGER_TTL:
        return f"its ttl is {trigger.ttl} s; 1 to {MAX_TRIGGER_TTL} s are allowed"
    return None


def _path_problem(trigger: Trigger) -> str | None:
    if not trigger.path:
        return f"its path is empty, and hops is {trigger.hops}"
    if trigger.hops != len(trigger.path) - 1:
        return f"hops is {trigger.hops}, but there are {len(trigger.path)} nodes in its path"
    if trigger.hops > MAX_HOPS:
        return f"it made {trigger.hops} hops; the limit is {MAX_HOPS}"
    if trigger.path[-1] != trigger.hostname:
        return f"its path ends with {trigger.path[-1]}, not with its sender {trigger.hostname}"
    if len(set(trigger.path)) != len(trigger.path):
        return f"its path is a loop: {show_path(trigger.path)}"
    return None


def next_path(
    paths: Iterable[tuple[NodeName, ...]], *, me: NodeName, receiver: NodeName
) -> tuple[NodeName, ...] | str:
    """Return the path of a trigger that a run of this node sends, or why the chain ends here.

    It is the shortest path allowed, which leaves most of the chain; the first of equally short
    ones.

    Args:
        paths: The paths of the run's causes (`Batch.paths`); `[()]` for a trigger sent by hand,
            none for a run that must trigger no node.
    """
    if receiver == me:
        return f"the loop ends here: {me} does not trigger itself"
    known = list(paths)
    if not known:
        return "no trigger is sent: the run uses an unreleased work tree"
    free = [path for path in known if receiver not in path and me not in path]
    if not free:
        shown = show_path((*known[0], me))
        more = f" (and of {len(known) - 1} more)" if len(known) > 1 else ""
        return f"the loop ends here: {receiver} is in the path {shown}{more}"
    shortest = min(free, key=len)
    if len(shortest) > MAX_HOPS:
        path = show_path((*shortest, me))
        return f"the chain ends here: {MAX_HOPS} hops were made along {path}"
    return (*shortest, me)


@dataclass(frozen=True, slots=True)
class SignedAdmission:
    """Decides on signed messages from the bus."""

    admission: Admission
    verifier: Verifier
    clock: Clock
    audit: Auditor

    def admit(self, token: bytes) -> AdmittedTrigger | DroppedTrigger:
        """Decide on one message; a malformed message is dropped, not raised as an error."""
        try:
            payload = claimed_payload(token)
        except IntegrityError as error:
            return DroppedTrigger(reason=str(error))
        return self.admission.admit(
            payload,
            now=self.clock.now().timestamp(),
            signer=lambda: self.verifier.verify(token, MessageKind.TRIGGER).signer,
        )

    def record_accepted(self, cause: RunCause, *, problem: str) -> None:
        """Record a trigger that was admitted, and why it leads to no run, or empty."""
        self._record(cause.sender, cause.uuid, cause.tags, problem)

    def record_dropped(self, dropped: DroppedTrigger) -> None:
        """Record a trigger that was dropped, unless that is normal and frequent."""
        if dropped.quiet:
            return
        trigger = dropped.trigger if dropped.signed else None
        if trigger is None:
            self._record("", "", (), dropped.reason)
        else:
            self._record(trigger.hostname, trigger.uuid, trigger.tags, dropped.reason)

    def _record(self, sender: str, uuid: str, tags: Sequence[str], reason: str) -> None:
        caller = SignerName(sender).caller if sender else ""
        # Each run of a node may send the same trigger: with one record for each, those of a
        # day would fill it.
        self.audit.record(
            caller, "trigger", ", ".join(tags), reason=reason, request=uuid, repeats=True
        )
