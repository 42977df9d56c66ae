"""Coalescing: one run at a time, one waiting run for further causes, and rollout steps.

On disk are the accepted causes that are not settled (the inbox). The inbox's owner

- writes a cause, with its id as seen, before `accept` and before the bus forgets the message;
- logs a `DroppedCause` before it deletes the cause;
- deletes a run's causes when `ended` returns their ids, not when the run starts.

After a crash, `restore` makes all causes in the inbox wait. A cause whose run started without a
recorded end leads to another run: when in doubt, run again.

- A cause is in one of the two batches until it is settled, by a run that started after its
  acceptance or by one `DroppedCause`.
- A run takes every waiting cause.
- Causes expire only on hold, never while they wait for a run to end.
- Memory and the inbox are bounded (`WAITING`, `PATHS`, `TEXT` and `SPELT` for each of the two
  batches), and one sender cannot take all of the room from others.

A step runs alone, through no hold except its rollout's, and only when this node knows the entries
of the nodes that ran before it. It waits for these for `PATIENCE` seconds.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.times import show_duration
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import (
    MAX_WAITING_PATHS,
    MAX_WAITING_TAGS,
    MAX_WAITING_TEXT,
    MAX_WAITING_TRIGGERS,
    WAITING_TEXT_HEAD,
)
from localpuppet.fleet.triggers.cause import CauseKind, RunCause
from localpuppet.fleet.trust.seen import Quota
from localpuppet.node.runs.holds import HoldStatus

# The share of one sender, and what is left then for senders with few.
WAITING = Quota(shared=MAX_WAITING_TRIGGERS, reserve=10_000, few=20)
PATHS = Quota(shared=MAX_WAITING_PATHS, reserve=1_000, few=20)
TEXT = Quota(shared=MAX_WAITING_TEXT, reserve=MAX_WAITING_TEXT // 2, few=128 * 1024)
SPELT = 50  # causes of a run that are stored and shown in full

Path = tuple[NodeName, ...]
Wanted = tuple[bool, tuple[str, ...]]  # Cause.noop, Cause.puppet_tags


class DroppedCause(Value):
    """A cause that leads to no run: log it once, then forget it."""

    id: str
    reason: str


class _Owed(NamedTuple):
    """The data kept of each cause."""

    expires: int | None
    path: Path
    wanted: Wanted
    timestamp: int
    sender: str
    text: int  # bytes of names and tags


class Batch:
    """The causes of one run, in the order of their acceptance.

    The first `SPELT` are kept in full; of the others only the fields of `_Owed`.
    """

    def __init__(self, causes: Iterable[tuple[str, _Owed, RunCause | None]] = ()) -> None:
        self._owed: dict[str, _Owed] = {}
        self._paths: dict[Path, Path] = {}
        self._spelt: dict[str, RunCause] = {}
        self._wanted: set[Wanted] = set()
        self._sent: Counter[str] = Counter()  # sender → causes
        self._ways: Counter[str] = Counter()  # sender → different paths that end with it
        self._text: Counter[str] = Counter()  # sender → bytes of names and tags
        self._text_size = 0  # their sum: a storm may have 10,000 senders
        self._tags: set[str] = set()  # those that limit the run
        self._tags_size = 0
        self._earliest: int | None = None  # no cause expires before this second has passed
        for cause_id, owed, spelt in causes:
            self._keep(cause_id, owed, spelt)

    def __len__(self) -> int:
        return len(self._owed)

    def __contains__(self, cause_id: object) -> bool:
        return cause_id in self._owed

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._owed)

    @property
    def timestamps(self) -> dict[str, int]:
        """All ids → when their senders sent them."""
        return {cause_id: owed.timestamp for cause_id, owed in self._owed.items()}

    @property
    def paths(self) -> tuple[Path, ...]:
        """The different paths of the causes; `()` for a cause that begins a chain."""
        return tuple(self._paths)

    @property
    def rollout(self) -> str | None:
        """The owner of the rollout's hold, if this is a step; otherwise `None`."""
        steps = (cause for cause in self._spelt.values() if cause.kind is CauseKind.ROLLOUT)
        return next((step.sender for step in steps), None)

    @property
    def noop(self) -> bool:
        return all(noop for noop, _ in self._wanted)

    @property
    def puppet_tags(self) -> tuple[str, ...]:
        """The Puppet tags that limit the run; empty if a cause has no tags.

        If only some causes are noop, only the others count: nothing changes that no cause asked
        for.
        """
        decide = [tags for noop, tags in self._wanted if noop == self.noop]
        return tuple(sorted({tag for tags in decide for tag in tags})) if all(decide) else ()

    def problem(self, cause: RunCause) -> str | None:
        """Return why a cause cannot be added; `None` if it can."""
        if not WAITING.has_room(own=self._sent[cause.sender], total=len(self._owed)):
            return f"{len(self._owed)} causes wait for a run already"
        if cause.path not in self._paths and not PATHS.has_room(
            own=self._ways[cause.sender], total=len(self._paths)
        ):
            return f"causes with {len(self._paths)} different paths wait for a run already"
        if not TEXT.has_room(own=self._text[cause.sender], total=self._text_size):
            return f"causes with {self._text_size} bytes of tags wait for a run already"
        new = {*cause.puppet_tags} - self._tags
        if new and sum(map(len, new)) + self._tags_size > MAX_WAITING_TAGS - len(self._tags):
            return f"requests with {len(self._tags)} different tags wait for a run already"
        return None

    def add(self, cause: RunCause) -> None:
        wanted = (cause.noop, cause.puppet_tags)
        texts = (*cause.path, *cause.tags, *cause.puppet_tags)
        text = sum(map(len, texts)) + WAITING_TEXT_HEAD * len(texts)
        owed = _Owed(cause.expires, cause.path, wanted, cause.timestamp, cause.sender, text)
        self._keep(cause.id, owed, cause)

    def _keep(self, cause_id: str, owed: _Owed, cause: RunCause | None) -> None:
        if owed.path not in self._paths:
            self._ways.update(owed.path[-1:])
        path = self._paths.setdefault(owed.path, owed.path)
        self._owed[cause_id] = owed._replace(path=path)  # one tuple for all that are equal
        self._wanted.add(owed.wanted)
        self._sent[owed.sender] += 1
        self._text[owed.sender] += owed.text
        self._text_size += owed.text
        new = {*owed.wanted[1]} - self._tags
        self._tags |= new
        self._tags_size += sum(map(len, new))
        if owed.expires is not None and (self._earliest is None or owed.expires < self._earliest):
            self._earliest = owed.expires
        if cause is not None and len(self._spelt) < SPELT:
            self._spelt[cause_id] = cause

    def _all(self) -> Iterator[tuple[str, _Owed, RunCause | None]]:
        return ((name, owed, self._spelt.get(name)) for name, owed in self._owed.items())

    def expired(self, now: float) -> list[str]:
        """Return the ids of the causes that have expired at `now`; a storm on hold asks often."""
        if self._earliest is None or int(now) <= self._earliest:
            return []
        ends = ((name, owed.expires) for name, owed in self._owed.items())
        return [name for name, end in ends if end is not None and int(now) > end]

    def without(self, ids: Collection[str]) -> "Batch":
        """Return a batch without some of the causes."""
        gone = {*ids}
        return Batch(item for item in self._all() if item[0] not in gone)

    def before(self, later: "Batch") -> "Batch":
        """Return a batch with these causes first, followed by those of `later`."""
        return Batch(chain(self._all(), later._all()))

    def to_dict(self) -> dict[str, Any]:
        """Return the form in a run's record: `{"causes": [the first SPELT], "count": of all}`."""
        return {
            "causes": [cause.to_dict() for cause in self._spelt.values()],
            "count": len(self._owed),
        }

    def __str__(self) -> str:
        """Return `timer`, or `10000 causes: trigger from a.example.com, timer, …`."""
        different = list(dict.fromkeys(str(cause) for cause in self._spelt.values()))
        shown = ", ".join(different[:2])
        if len(self._owed) == 1 and shown:
            return shown
        complete = len(different) <= 2 and len(self._spelt) == len(self._owed)
        parts = [shown] * bool(shown) + ["…"] * (not complete)
        return f"{len(self._owed)} causes: {', '.join(parts)}"


class CoalescerStep(Value):
    """The next actions; for a run to start, report its result: `ended`, `put_back`, `give_up`."""

    start: Batch | None = None
    dropped: tuple[DroppedCause, ...] = ()


class Coalescer:
    """The active run and the waiting run of one node.

    `running` and `waiting` are read-only; each is `None` or has at least one cause.
    """

    def __init__(self) -> None:
        self.running: Batch | None = None
        self.waiting: Batch | None = None

    @classmethod
    def restore(cls, causes: Iterable[RunCause]) -> "Coalescer":
        """Return the state after a restart."""
        coalescer = cls()
        for cause in causes:
            coalescer.accept(cause)
        return coalescer

    def problem(self, cause: RunCause) -> str | None:
        """Return why a cause cannot be accepted; call it before the inbox stores the cause."""
        if any(batch is not None and cause.id in batch for batch in (self.running, self.waiting)):
            return f"a duplicate: uuid {cause.uuid} waits for its run already"
        return self.waiting.problem(cause) if self.waiting else None

    def accept(self, cause: RunCause) -> None:
        """Add a cause, which the inbox has stored, to the waiting run."""
        self.waiting = self.waiting or Batch()
        self.waiting.add(cause)

    def step(self, now: float, *, held: str | None) -> CoalescerStep:
        """Return the next actions.

        Call it after every change, and regularly on hold: a cause expires in the second after its
        last.
        """
        if held is not None:
            return CoalescerStep(dropped=self._expire(now, held))
        if self.running is not None or self.waiting is None:
            return CoalescerStep()
        self.running, self.waiting = self.waiting, None
        return CoalescerStep(start=self.running)

    def run_alone(self, cause: RunCause) -> Batch:
        """Start a run for one cause: a step of a rollout settles no other cause.

        End it by `ended` or `give_up`; it is not put back.
        """
        if self.running is not None:
            raise RuntimeError("a run is active (a bug in localpuppet)")
        self.running = Batch()
        self.running.add(cause)
        return self.running

    def ended(self) -> tuple[str, ...]:
        """Settle the causes of the run that has ended; return their ids for the inbox."""
        batch, self.running = self._taken(), None
        return batch.ids

    def put_back(self) -> None:
        """Make the causes of the run wait again: it did not start.

        Another run is active on the node, or it was put on hold. Call `step` again when the node
        may be free, not at once.
        """
        batch, self.running = self._taken(), None
        self.waiting = batch.before(self.waiting) if self.waiting else batch

    def give_up(self, reason: str) -> tuple[DroppedCause, ...]:
        """Drop the causes of the run: it cannot be started."""
        batch, self.running = self._taken(), None
        text = f"no run could be started: {reason}"
        return tuple(DroppedCause(id=cause_id, reason=text) for cause_id in batch.ids)

    def _expire(self, now: float, held: str) -> tuple[DroppedCause, ...]:
        if self.waiting is None:
            return ()
        late = self.waiting.expired(now)
        if late:
            self.waiting = self.waiting.without(late) or None
        reason = f"expired while the node was on hold: {held}"
        return tuple(DroppedCause(id=cause_id, reason=reason) for cause_id in late)

    def _taken(self) -> Batch:
        if self.running is None:
            raise RuntimeError("no run is active (a bug in localpuppet)")
        return self.running


# Seconds for which a step waits for entries of other nodes.
PATIENCE = 120.0


class StepAction(Value):
    """The next actions."""

    due: RunCause | None = None
    dropped: tuple[DroppedCause, ...] = ()


class Steps:
    """The accepted steps that are not over; `lacking` names the entries that one waits for."""

    def __init__(self, lacking: Callable[[RunCause], str]) -> None:
        self._lacking = lacking
        self._waiting: dict[str, RunCause] = {}

    @property
    def await_entries(self) -> bool:
        """Whether a step waits for entries of other nodes, or did."""
        return any(cause.awaited_entries for cause in self._waiting.values())

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, cause: RunCause) -> None:
        """Add a step, which the inbox has stored."""
        self._waiting[cause.id] = cause

    def forget(self, identifier: str) -> None:
        """Forget a cause that is over, if it was a step."""
        self._waiting.pop(identifier, None)

    def look(self, held: HoldStatus | None, *, now: float) -> StepAction:
        """Return the next actions; call it while no run is active."""
        owners = frozenset() if held is None else held.rollouts
        late = [cause for cause in self._waiting.values() if cause.sender not in owners]
        due = None
        if held is not None and held.alone:
            due = next((cause for cause in self._waiting.values() if cause.sender in owners), None)
        reason = "its rollout no longer holds this node"
        dropped = [DroppedCause(id=cause.id, reason=reason) for cause in late]
        if due is not None and due.awaited_entries and (missing := self._lacking(due)):
            if now - due.timestamp >= PATIENCE:
                dropped.append(DroppedCause(id=due.id, reason=_unknown(missing)))
            due = None
        return StepAction(due=due, dropped=tuple(dropped))


def _unknown(missing: str) -> str:
    return (
        f"the inventory entries of earlier nodes did not arrive within {show_duration(PATIENCE)}:"
        f" {missing}"
    )
