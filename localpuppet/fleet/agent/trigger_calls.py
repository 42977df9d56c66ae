"""Answer the verbs `trigger` and `kick` of Puppet code, which send triggers to other nodes.

- A kick from a run is sent when the run has ended.
- A kick without receivers is an answer. If the agent cannot ask for the receivers, the call fails.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import NodeName, RunId, parse_tag
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.agent.inventory_calls import InventoryCalls
from localpuppet.fleet.bus.key_value import KeyValue, check_key
from localpuppet.fleet.bus.servers import ENGINES
from localpuppet.fleet.inventory.reading import UnansweredQuery
from localpuppet.fleet.triggers import sending
from localpuppet.fleet.triggers.chain import Loop, next_path
from localpuppet.fleet.triggers.held_kicks import MAX_LIFE, MAX_RECEIVERS, HeldKicks
from localpuppet.fleet.triggers.kick import Kick
from localpuppet.fleet.triggers.trigger import MAX_TAGS, MAX_TTL
from localpuppet.fleet.trust.signing import MessageSigner

Paths = Callable[[str | None], Iterable[tuple[NodeName, ...]]]
# Seconds for which a kick is valid and the bus keeps it, unless the resource gives another time.
KICK_TTL = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """How this node sends triggers.

    Attributes:
        store: Lends a connected store of an engine; `None` means the engine of the site.
        signer: Signs as this node.
        paths: Returns the paths of the causes of a run, or of the run in progress.
        keyprefix: The key prefix of this site's triggers.
        clock: The node's clock.
    """

    store: Callable[[str | None], AbstractAsyncContextManager[KeyValue]]
    signer: MessageSigner
    paths: Paths
    keyprefix: str
    clock: Clock


class TriggerCalls:
    """Answers `trigger` and `kick`.

    Args:
        sender: Sends triggers.
        inventory: Answers which nodes receive a kick.
        held: Keeps the kicks of a run until the run has ended.
    """

    def __init__(self, sender: Sender, *, inventory: InventoryCalls, held: HeldKicks) -> None:
        self._sender = sender
        self._inventory = inventory
        self._held = held

    async def trigger(self, fields: Fields, run: str | None) -> dict[str, Any]:
        """Send a trigger to named nodes.

        Args:
            fields: The fields of the call.
            run: The id of the run that asks, if a supervisor started it.

        Raises:
            InvalidInputError: A field is invalid.
        """
        keyttl = fields.integer("keyttl", minimum=1, maximum=MAX_LIFE)
        ttl = fields.integer_or_none("ttl", minimum=1, maximum=MAX_TTL)
        call = sending.Outgoing(
            hosts=fields.parsed_list("hosts", NodeName.parse, maximum=MAX_RECEIVERS),
            tags=fields.parsed_list("tags", parse_tag, maximum=MAX_TAGS),
            ttl=min(keyttl, MAX_TTL) if ttl is None else ttl,
            keyprefix=check_key(fields.text("keyprefix")),
            keyttl=keyttl,
        )
        engine = fields.text_or_none("engine")
        if engine is not None and engine not in ENGINES:
            raise InvalidInputError(f"the engine {engine[:20]!r} is unknown", where="call")
        return await self._send(call, engine, run)

    async def kick(self, fields: Fields, run: str | None) -> dict[str, Any]:
        """Send a trigger to the nodes that a kick selects, except this node; see `trigger`.

        The kicks of a run in progress are sent when it has ended (`triggers.held_kicks`).

        Raises:
            InvalidInputError: A field is invalid.
        """
        kick = Kick.read(fields)
        ttl = fields.integer_or_none("ttl", minimum=1, maximum=MAX_TTL) or KICK_TTL
        tags = fields.parsed_list("tags", parse_tag, maximum=MAX_TAGS)
        receivers = await self._receivers(kick)
        call = sending.Outgoing(
            hosts=receivers, tags=tags, ttl=ttl, keyprefix=self._sender.keyprefix, keyttl=ttl
        )
        answer: dict[str, Any] = {"ok": True, "receivers": list(receivers), "deferred": False}
        if not receivers:
            return {**answer, "sent": [], "dropped": []}
        if run is None or not self._held.is_on(run):
            return {**answer, **await self._send(call, None, run)}
        return {**answer, "deferred": True, **self._hold(call, RunId(run))}

    def _hold(self, call: sending.Outgoing, run: RunId) -> dict[str, Any]:
        me, paths = NodeName(self._sender.signer.name), list(self._sender.paths(run))
        ways = {host: next_path(paths, me=me, receiver=host) for host in call.hosts}
        kept = [host for host, way in ways.items() if not isinstance(way, Loop)]
        if kept:
            self._held.hold(run, replace(call, hosts=tuple(kept)), uuid=str(uuid.uuid4()))
        dropped = {host: way.reason for host, way in ways.items() if isinstance(way, Loop)}
        return {"sent": kept, "dropped": _listed(dropped)}

    async def _receivers(self, kick: Kick) -> tuple[NodeName, ...]:
        answer = await self._inventory.ask(kick.question)
        if isinstance(answer, UnansweredQuery):
            raise UnavailableError(
                f"could not query the nodes to run: {one_line(answer.reason)}",
                where="kick",
                hint="run the same query with 'localpuppet query'",
            )
        names = [name for name in answer.answer.names if name != self._sender.signer.name]
        if len(names) > MAX_RECEIVERS:
            raise InvalidInputError(
                f"{len(names)} nodes match, the limit is {MAX_RECEIVERS}", where="kick"
            )
        return tuple(NodeName(name) for name in names)

    async def _send(
        self, call: sending.Outgoing, engine: str | None, run: str | None
    ) -> dict[str, Any]:
        paths = self._sender.paths(run)
        async with self._sender.store(engine) as kv:
            sent = await sending.send(
                call,
                kv=kv,
                signer=self._sender.signer,
                paths=paths,
                clock=self._sender.clock,
                uuid=str(uuid.uuid4()),
            )
        report = {"sent": list(sent.sent), "dropped": _listed(sent.dropped)}
        return {"ok": True, "uuid": sent.uuid, **report}


def _listed(dropped: Mapping[NodeName, str]) -> list[dict[str, str]]:
    return [{"node": node, "reason": reason} for node, reason in dropped.items()]
