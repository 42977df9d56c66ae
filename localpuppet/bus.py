"""The bus: what nodes say to each other, as recipes over a `KeyValue` store.

Owns: the keys, the sending of triggers, presence, and the exchange of requests and replies; how a
lease is had stands in `leases`. Refuses to know: engines, keys for signing, and what a node does
with what it hears.

    KEYPREFIX/hosts/RECEIVER/SENDER               the newest trigger of a sender for a receiver
    /localpuppet/presence/NODE                    who is there, and how it is
    /localpuppet/leases/NAME                      who has a lease
    /localpuppet/requests/NODE/CALLER/ID          a request to a node
    /localpuppet/replies/CALLER/NODE/ID           what it answered

The receiver stands before the sender, so that a store's permissions can give each node its own.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from localpuppet.errors import InvalidInputError
from localpuppet.key_value import Change, Entry, KeyValue, Listing, Put
from localpuppet.model.chain import Loop, next_path
from localpuppet.model.names import NodeName
from localpuppet.model.trigger import Trigger
from localpuppet.ports import Clock
from localpuppet.signing import Kind, Signer

BASE = "/localpuppet"
PRESENCE = f"{BASE}/presence/"
LEASES = f"{BASE}/leases/"
PRESENCE_TTL = 60.0
FAREWELL_TTL = 3.0
REPLY_TTL = 60.0  # whoever asked is watching
AT_ONCE = 64  # writes that are under way together
# Receivers that one message names: each of them gets all the names, so that a message for all
# would make the bytes grow with the square of their number; a signature costs as much as 5 kB.
TOGETHER = 20
_LEASE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\Z")


def triggers_for(node: NodeName, keyprefix: str) -> str:
    """Return the prefix of the triggers for a node."""
    return f"{keyprefix}/hosts/{node}/"


def requests_for(node: NodeName) -> str:
    """Return the prefix of the requests to a node."""
    return f"{BASE}/requests/{node}/"


def requests_of(caller: str, node: NodeName) -> str:
    """Return the prefix of a caller's requests to a node."""
    return f"{requests_for(node)}{caller}/"


def replies_to(caller: str) -> str:
    """Return the prefix of the replies to a caller."""
    return f"{BASE}/replies/{caller}/"


def replies_of(node: NodeName, caller: str) -> str:
    """Return the prefix of a node's replies to a caller."""
    return f"{replies_to(caller)}{node}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What somebody wants triggered.

    Attributes:
        hosts: The nodes that are to run.
        tags: What it is about.
        ttl: For how many seconds the trigger is good.
        keyprefix: Where on the bus.
        keyttl: For how many seconds the store keeps it.
    """

    hosts: tuple[NodeName, ...]
    tags: tuple[str, ...]
    ttl: int
    keyprefix: str
    keyttl: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of a call.

    Attributes:
        uuid: The id of the trigger.
        sent: The nodes whose trigger the store has.
        dropped: Node → why nothing was sent: its chain ends here.
    """

    uuid: str
    sent: tuple[NodeName, ...]
    dropped: dict[NodeName, str]


async def send(
    call: Call,
    *,
    kv: KeyValue,
    signer: Signer,
    paths: Iterable[tuple[NodeName, ...]],
    clock: Clock,
    uuid: str,
) -> Sent:
    """Send a trigger to each of its receivers.

    Args:
        call: The trigger.
        kv: The store.
        signer: This node.
        paths: Those of the causes of the run that sends; `[()]` for a trigger by hand.
        clock: The node's clock.
        uuid: A new id; all messages of the call have it.

    Raises:
        UnavailableError: The store did not take all of it; which part it took is unknown.
        InvalidInputError: No receiver would take the message: it is too large, has too many tags,
            or the signer has a name that no node can have.
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
            Trigger.parse(payload)  # who sends must hear of what every receiver would only log
            token = signer.sign(payload, Kind.TRIGGER)
            writes += [(triggers_for(host, call.keyprefix) + me, token) for host in part]
    for start in range(0, len(writes), AT_ONCE):
        part_of = writes[start : start + AT_ONCE]
        done = await asyncio.gather(
            *(kv.put(key, token, ttl=call.keyttl) for key, token in part_of), return_exceptions=True
        )
        for problem in done:
            if isinstance(problem, BaseException):
                raise problem
    return Sent(
        uuid=uuid,
        sent=tuple(host for host in dict.fromkeys(call.hosts) if host not in dropped),
        dropped=dropped,
    )


def parse_lease_name(text: str) -> str:
    """Return the name of a lease.

    Raises:
        InvalidInputError: It is none.
    """
    if not _LEASE_NAME.match(text):
        raise InvalidInputError(
            f"{text[:60]!r} is no name of a lease",
            hint="up to 100 letters, digits and '_ . -', the first no '.' or '-'",
        )
    return text


async def ask(
    kv: KeyValue, token: bytes, *, caller: str, node: NodeName, request: str, ttl: float
) -> AsyncGenerator[bytes, None]:
    """Put a request before a node, and yield what comes as its reply: to be checked by the caller.

    Args:
        kv: The store.
        token: The signed request.
        caller: Who asks: the last part of a key.
        node: Who is asked.
        request: Its id.
        ttl: Seconds that it stays there.

    Raises:
        UnavailableError: The store cannot be asked.
    """
    replies = replies_of(node, caller)
    async with aclosing(kv.watch(replies)) as changes:
        asked = False
        async for change in changes:
            for entry in entries(change):
                if entry.key == replies + request:
                    yield entry.value
            if not asked:  # watching by now: the reply cannot be missed
                await kv.put(requests_of(caller, node) + request, token, ttl=ttl)
                asked = True


async def reply(kv: KeyValue, token: bytes, *, caller: str, node: NodeName, request: str) -> None:
    """Put a node's reply where its caller looks; see `ask`.

    Raises:
        UnavailableError: The store cannot be reached.
    """
    await kv.put(replies_of(node, caller) + request, token, ttl=REPLY_TTL)


async def announce(
    kv: KeyValue, node: NodeName, token: bytes, *, ttl: float = PRESENCE_TTL
) -> None:
    """Tell how a node is; gone when it is not told again within `ttl` seconds.

    Raises:
        UnavailableError: The store cannot be reached.
    """
    await kv.put(f"{PRESENCE}{node}", token, ttl=ttl)


async def nodes(kv: KeyValue) -> dict[str, bytes]:
    """Return what the nodes that are there have told, by name; signed, and not checked here.

    Raises:
        UnavailableError: The store cannot be asked.
    """
    listing = await kv.list(PRESENCE)
    return {entry.key.removeprefix(PRESENCE): entry.value for entry in listing.entries}


def entries(change: Change) -> Sequence[Entry]:
    """Return what a change says to be there."""
    if isinstance(change, Listing):
        return change.entries
    return [change.entry] if isinstance(change, Put) else []
