"""Send triggers: one message to each receiver, and wait for the outcomes that agents publish."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import Annotated, Any

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.converter import AllowedRange
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import parse_time, show_duration
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.fleet.bus import key_value, layout
from localpuppet.fleet.bus.bus_limits import MAX_LIFE, MAX_RECEIVERS, MAX_TRIGGER_TAGS
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import triggers_for
from localpuppet.fleet.inventory.presence import believe
from localpuppet.fleet.triggers.cause import Tag, Trigger, TriggerOutcome
from localpuppet.fleet.triggers.trigger_admission import next_path
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner, Verifier
from localpuppet.node.runs.holds import rollout_of
from localpuppet.node.runs.run_records import Records

AT_ONCE = 64  # concurrent writes
# Receivers in one message: each receiver gets all the names, so one message for all would grow the
# bytes with the square of their number; a signature costs as much as 5 kB.
TOGETHER = 20


Receivers = Annotated[tuple[NodeName, ...], AllowedRange(maximum=MAX_RECEIVERS)]
Tags = Annotated[tuple[Tag, ...], AllowedRange(maximum=MAX_TRIGGER_TAGS)]
Life = Annotated[int, AllowedRange(minimum=1, maximum=MAX_LIFE)]


class Outgoing(Value):
    """A trigger to send: the seconds for which it is valid, and for which the store keeps it."""

    hosts: Receivers
    tags: Tags
    ttl: Annotated[int, AllowedRange(minimum=1)]
    keyprefix: str
    keyttl: Life


class SendResult(Value):
    """The result of a call; `dropped` has nodes whose chain ends here, and why."""

    uuid: str
    sent: tuple[NodeName, ...]
    dropped: dict[NodeName, str]


async def send(
    call: Outgoing,
    *,
    kv: KeyValue,
    signer: MessageSigner,
    paths: Iterable[tuple[NodeName, ...]],
    clock: Clock,
    uuid: str,
) -> SendResult:
    """Send a trigger to each of its receivers.

    Args:
        paths: The paths of the run's causes; `[()]` for a trigger by hand.
        uuid: A new id, shared by all messages of the call.

    Raises:
        UnavailableError: The store did not accept everything; which part it accepted is unknown.
        InvalidInputError: Receivers would reject the message: it is too large, has too many tags,
            or the signer's name is not a node name.
    """
    me = NodeName(signer.name)
    known = list(paths)
    by_path: dict[tuple[NodeName, ...], list[NodeName]] = {}
    dropped = {}
    for host in dict.fromkeys(call.hosts):
        path = next_path(known, me=me, receiver=host)
        if isinstance(path, str):
            dropped[host] = path
        else:
            by_path.setdefault(path, []).append(host)
    writes = []
    for path, hosts in by_path.items():
        for start in range(0, len(hosts), TOGETHER):
            part = tuple(hosts[start : start + TOGETHER])
            trigger = Trigger(
                hostname=me,
                tags=call.tags,
                hosts=part,
                timestamp=int(clock.now().timestamp()),
                uuid=uuid,
                ttl=call.ttl,
                hops=len(path) - 1,
                path=path,
            )
            payload = trigger.to_payload()
            Trigger.parse(payload)  # raises here what receivers would only log
            token = signer.sign(payload, MessageKind.TRIGGER)
            writes += [(triggers_for(host, call.keyprefix) + me, token) for host in part]
    for start in range(0, len(writes), AT_ONCE):
        part_of = writes[start : start + AT_ONCE]
        done = await asyncio.gather(
            *(kv.put(key, token, ttl=call.keyttl) for key, token in part_of), return_exceptions=True
        )
        for problem in done:
            if isinstance(problem, BaseException):
                raise problem
    return SendResult(
        uuid=uuid,
        sent=tuple(host for host in dict.fromkeys(call.hosts) if host not in dropped),
        dropped=dropped,
    )


def paths_of(records: Records, run: str | None) -> list[tuple[NodeName, ...]]:
    """Return the paths of the causes of this node's run; `[()]` if it begins a chain.

    A run of an unreleased work tree has no paths: it must trigger no other node.
    """
    if run is None:
        return [()]
    try:
        request = records.get(run).read_request()
    except FileNotFoundError as error:
        raise InvalidInputError("its record is incomplete", where=f"run {run}") from error
    if request.get("work_tree"):
        return []
    causes = request.get("causes") or {}
    paths = causes.get("paths") or [[]]
    return [tuple(NodeName.parse(name) for name in path) for path in paths]


AGAIN = 0.5
# Seconds after which an online node has received a trigger.
HEARD = 2.0
# Seconds after the end of the ttl when a node that has not accepted the trigger never will.
LATE = 5.0
NOT_ACCEPTED = "not_accepted"

End = dict[str, Any]
Ends = dict[str, End | None]


class AwaitedRun(Value):
    """A trigger or request whose outcome is awaited; it was sent in one of these seconds."""

    uuid: str
    sent_in: range


async def ends(
    awaited: Mapping[NodeName, AwaitedRun],
    kv: KeyValue,
    verifier: Verifier,
    *,
    sender: str,
    ttl: float,
    patience: float,
    on_end: Callable[[str, End], None],
) -> Ends:
    """Return the outcome of each node's cause; `None` if none was received in time.

    An outage only costs time. If a node is idle when the trigger has expired, or was never online,
    it has not accepted the trigger.

    Args:
        ttl: Seconds for which a trigger is valid; infinite for what the nodes accepted.
        on_end: Called with each outcome as it arrives.
    """
    good = ttl + LATE
    waiting = _Waiting(awaited, verifier, sender=sender, good=good, on_end=on_end)
    await _wait(kv, waiting, min(patience, good))
    if patience > good:
        waiting.never_came()
        await _wait(kv, waiting, patience - good)
    return waiting.ends


async def _wait(kv: KeyValue, waiting: "_Waiting", seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not waiting.done:
                try:
                    await _look(kv, waiting)
                except UnavailableError:
                    waiting.missed = True
                    await asyncio.sleep(AGAIN)


class _Waiting:
    def __init__(
        self,
        awaited: Mapping[NodeName, AwaitedRun],
        verifier: Verifier,
        *,
        sender: str,
        good: float,
        on_end: Callable[[str, End], None],
    ) -> None:
        self._awaited = {str(name): cause for name, cause in awaited.items()}
        self._sender = sender
        self._verifier = verifier
        self._good = good
        self._received_at = asyncio.get_running_loop().time() + HEARD
        self._on_end = on_end
        self._came: set[str] = set()
        self.missed = False  # an outcome may have been published meanwhile
        self.ends: Ends = dict.fromkeys(awaited)

    @property
    def done(self) -> bool:
        """Whether all nodes have published an outcome."""
        return all(self.ends.values())

    def take(self, name: str, token: bytes) -> None:
        """Process the published status of a node."""
        if name not in self.ends or self.ends[name] is not None:
            return
        self._came.add(name)
        awaited = self._awaited[name]
        status = believe(self._verifier, name, token)
        raws = status.get("outcomes")
        known = [TriggerOutcome.of_published(raw) for raw in raws] if isinstance(raws, list) else []
        waited = asyncio.get_running_loop().time() >= self._received_at
        idle = waited and status.get("cause") is None and status.get("waiting") == 0
        end_reported: End | None = None
        for end in sorted(filter(None, known), key=lambda end: end.uuid == awaited.uuid):
            if end.answers(sender=self._sender, uuid=awaited.uuid, sent=awaited.sent_in, idle=idle):
                end_reported = _end(end.uuid, end.outcome, run=end.run, reason=end.reason)
        if end_reported is None and _is_free(status, since=awaited.sent_in[-1] + self._good):
            end_reported = _end(awaited.uuid, NOT_ACCEPTED)
        if end_reported is not None:
            self._end(name, end_reported)

    def never_came(self) -> None:
        """Give up on nodes that were offline for the trigger's whole ttl."""
        for name, end in self.ends.items():
            if end is None and name not in self._came and not self.missed:
                self._end(name, _end(self._awaited[name].uuid, NOT_ACCEPTED))

    def _end(self, name: str, end: End) -> None:
        self.ends[name] = end
        self._on_end(name, end)


def _end(uuid: str, outcome: str, *, run: str | None = None, reason: str = "") -> End:
    return {"uuid": uuid, "run": run, "outcome": outcome, "reason": reason}


def _is_free(status: Mapping[str, Any], *, since: float) -> bool:
    """Return whether a node's status says that it owed no run after `since`, by its clock."""
    if status.get("state") not in ("idle", "on hold") or status.get("waiting") != 0:
        return False
    try:
        return parse_time(str(status.get("at"))).timestamp() > since
    except ValueError:
        return False


async def _look(kv: KeyValue, waiting: _Waiting) -> None:
    """Read the published status of the nodes until all have an outcome."""
    async with aclosing(kv.watch(layout.PRESENCE)) as changes:
        async for change in changes:
            for entry in key_value.entries(change):
                waiting.take(entry.key.removeprefix(layout.PRESENCE), entry.value)
            if waiting.done:
                return


async def doubts(kv: KeyValue, verifier: Verifier, sent: SendResult, *, ttl: int) -> list[str]:
    """Return why some receivers may report no outcome; empty if the store is unreachable."""
    try:
        entries = await asyncio.gather(*(kv.get(f"{layout.PRESENCE}{name}") for name in sent.sent))
    except UnavailableError:
        return []
    reasons = []
    for name, entry in zip(sent.sent, entries, strict=True):
        if entry is None:
            reasons.append(
                f"the agent of {name} is offline; it has {show_duration(ttl)} to connect"
            )
            continue
        status = believe(verifier, name, entry.value)
        if status.get("state") == "not trusted":
            reasons.append(f"{name} is not trusted here: its outcome will be rejected")
        elif status.get("holds"):
            reasons.append(f"{name} is on hold: {_hold_effect(status['holds'], ttl)}")
    return reasons


def _hold_effect(holds: list[dict[str, Any]], ttl: int) -> str:
    """Return the holds of a node, and what they mean for a trigger; see `HoldStatus.alone`."""
    owners = {str(hold.get("owner")) for hold in holds}
    shown = "; ".join(f"{hold.get('reason')} (held by {hold.get('owner')})" for hold in holds)
    if len(owners) == 1 and all(rollout_of(owner) for owner in owners):
        return f"{one_line(shown)}; it runs when the rollout is over"
    return f"{one_line(shown)}; it runs if the hold ends within {show_duration(ttl)}"
