"""Send triggers: one message to each receiver, along a path that ends loops."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import triggers_for
from localpuppet.fleet.triggers.admission import Loop, next_path
from localpuppet.fleet.triggers.cause import Trigger
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner

if TYPE_CHECKING:
    from localpuppet.node.runs.records import Records


AT_ONCE = 64  # concurrent writes
# Receivers in one message: each receiver gets all the names, so one message for all would grow the
# bytes with the square of their number; a signature costs as much as 5 kB.
TOGETHER = 20


class Outgoing(Value):
    """A trigger to send.

    Attributes:
        hosts: The nodes that are to run.
        tags: What it is about.
        ttl: Seconds for which the trigger is valid.
        keyprefix: Its prefix on the bus.
        keyttl: Seconds for which the store keeps it.
    """

    hosts: tuple[NodeName, ...]
    tags: tuple[str, ...]
    ttl: int
    keyprefix: str
    keyttl: int


class SendResult(Value):
    """The result of a call.

    Attributes:
        uuid: The id of the trigger.
        sent: The nodes whose trigger the store has.
        dropped: Node → why no trigger was sent: its chain ends here.
    """

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
        call: The trigger.
        kv: The store.
        signer: This node.
        paths: The paths of the run's causes; `[()]` for a trigger by hand.
        clock: The node's clock.
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
        if isinstance(path, Loop):
            dropped[host] = path.reason
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


def paths_of(records: "Records", run: str | None) -> list[tuple[NodeName, ...]]:
    """Return the paths of the causes of this node's run; `[()]` if it begins a chain.

    A run of an unreleased work tree has no paths: it must trigger no other node.

    Raises:
        InvalidInputError: There is no such run.
        StateError: Its record is damaged.
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
