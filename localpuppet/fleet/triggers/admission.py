"""Admission: is this trigger to be accepted, and if not, why.

Owns: the order of the checks and their texts (docs/triggers.md has the table). Refuses to know:
files, clocks, keys: what it needs of those comes as plain values and callables.

Invariants: a bad message raises nothing; the checks come in one order, so that a message has one
reason; nothing about a message is believed before its signature was checked, but for what it
claims to be, which the signature is checked against; a reason is one printable line.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.fleet.triggers.cause import Cause
from localpuppet.fleet.triggers.trigger import MAX_HOPS, MAX_TTL, Trigger

MAX_SKEW = 30  # seconds that a sender's clock may be ahead of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsigned:
    """Nobody vouches for a message.

    Attributes:
        reason: Why: there is no signature, it does not fit, its key is unknown.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A trigger that is to be followed by a run.

    Attributes:
        cause: What to keep of it until then.
        remember_until: Until when `cause.id` must be known as seen, durably: seconds since 1970 by
            our clock. Before that the same message could be admitted once more.
    """

    cause: Cause
    remember_until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A trigger that leads to nothing.

    Attributes:
        reason: One printable line.
        quiet: Nothing is wrong, and most nodes see many of these: a line for debugging only.
        trigger: What it said, where it could be read; not to be believed.
    """

    reason: str
    quiet: bool = False
    trigger: Trigger | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What one node accepts.

    Attributes:
        me: The node.
        trigger_refusal: The local policy: why a sender may not trigger this node; `None` if it may.
        seen: Whether a cause's id is remembered.
    """

    me: NodeName
    trigger_refusal: Callable[[NodeName], str | None]
    seen: Callable[[str], bool]

    def admit(
        self, payload: bytes, *, now: float, signer: Callable[[], str | Unsigned]
    ) -> Admitted | Dropped:
        """Decide on one message.

        Args:
            payload: Exactly the bytes that were signed.
            now: Seconds since 1970, UTC.
            signer: Whose valid signature the payload has. Called only for a message that has the
                form of a trigger: a storm of rubbish costs no cryptography.
        """
        try:
            trigger = Trigger.parse(payload)
        except InvalidInputError as error:
            return Dropped(reason=one_line(str(error)))
        cause = Cause.of_trigger(trigger)
        for reason, quiet in self._problems(trigger, cause, int(now), signer):
            if reason:
                return Dropped(reason=one_line(reason), quiet=quiet, trigger=trigger)
        last = trigger.timestamp + trigger.ttl
        return Admitted(cause=cause, remember_until=last + MAX_SKEW + 1)

    def _problems(
        self, trigger: Trigger, cause: Cause, now: int, signer: Callable[[], str | Unsigned]
    ) -> Iterator[tuple[str | None, bool]]:
        """Yield a reason or nothing for each check, in their order, and whether it is quiet."""
        yield _signature_problem(trigger, signer()), False
        yield _age_problem(trigger, now), False
        yield self._address_problem(trigger), True
        yield self._policy_problem(trigger), False
        yield _path_problem(trigger), False
        yield self._loop_problem(trigger), False
        # Messages come at least once, and again whenever the bus is read anew: that is not news.
        yield self._duplicate_problem(cause), True

    def _address_problem(self, trigger: Trigger) -> str | None:
        if self.me in trigger.hosts:
            return None
        return f"not addressed to {self.me}"

    def _policy_problem(self, trigger: Trigger) -> str | None:
        reason = self.trigger_refusal(trigger.hostname)
        return None if reason is None else f"not allowed to trigger this node: {reason}"

    def _loop_problem(self, trigger: Trigger) -> str | None:
        if self.me not in trigger.path:
            return None
        return f"the loop ends here: {self.me} is in the path {show_path(trigger.path)}"

    def _duplicate_problem(self, cause: Cause) -> str | None:
        if not self.seen(cause.id):
            return None
        return f"a duplicate: uuid {cause.uuid} was accepted before"


def show_path(path: tuple[NodeName, ...]) -> str:
    """Return `a -> b`."""
    return " -> ".join(path)


def _signature_problem(trigger: Trigger, signer: str | Unsigned) -> str | None:
    if isinstance(signer, Unsigned):
        return f"no valid signature: {signer.reason}"
    if signer != trigger.hostname:
        return f"the signature is {signer}'s, but the trigger says it is from {trigger.hostname}"
    return None


def _age_problem(trigger: Trigger, now: int) -> str | None:
    # Whole seconds on both sides: a timestamp knows no fractions, and they are the sender's favour.
    age = now - trigger.timestamp
    if age > trigger.ttl:
        return f"expired: {age} s old, its ttl is {trigger.ttl} s (are the clocks in step?)"
    if -age > MAX_SKEW:
        return f"its time is {-age} s in the future (are the clocks in step?)"
    if not 1 <= trigger.ttl <= MAX_TTL:
        return f"its ttl is {trigger.ttl} s; 1 to {MAX_TTL} s are allowed"
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
