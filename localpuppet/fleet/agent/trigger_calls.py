"""What Puppet code has sent to other nodes: the verbs `trigger` and `kick`.

Owns: their fields (docs/puppet-module.md), and that a kick of a run waits until the run is over.
Refuses to know: where the line came from, and how it is sent.

Invariant: a kick to nobody is an answer; that nobody could be asked who is to run is an error.
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
from localpuppet.fleet.inventory.reading import CouldNotAsk
from localpuppet.fleet.triggers import sending
from localpuppet.fleet.triggers.chain import Loop, next_path
from localpuppet.fleet.triggers.held_kicks import MAX_LIFE, MAX_RECEIVERS, HeldKicks
from localpuppet.fleet.triggers.kick import Kick
from localpuppet.fleet.triggers.trigger import MAX_TAGS, MAX_TTL
from localpuppet.fleet.trust.signing import Signer

Paths = Callable[[str | None], Iterable[tuple[NodeName, ...]]]
# Seconds for which a kick is good, and for which the bus keeps it, unless the resource says more.
KICK_TTL = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """How this node sends triggers.

    Attributes:
        store: Lends the store of an engine, connected; that of the site for `None`.
        signer: This node.
        paths: Returns the paths of the causes of a run, or of the run that is on.
        keyprefix: Where on the bus this site's triggers are.
        clock: The node's clock.
    """

    store: Callable[[str | None], AbstractAsyncContextManager[KeyValue]]
    signer: Signer
    paths: Paths
    keyprefix: str
    clock: Clock


class TriggerCalls:
    """Answers `trigger` and `kick`.

    Args:
        sender: Sends.
        inventory: Is asked who is to run.
        held: Where the kicks of a run wait until it is over.
    """

    def __init__(self, sender: Sender, *, inventory: InventoryCalls, held: HeldKicks) -> None:
        self._sender = sender
        self._inventory = inventory
        self._held = held

    async def trigger(self, fields: Fields, run: str | None) -> dict[str, Any]:
        """Send a trigger to nodes that are named.

        Args:
            fields: The question.
            run: Whose question it is, where a supervisor started the run.

        Raises:
            InvalidInputError: The question is refused.
            UnavailableError: It could not be sent.
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
        """Send a trigger to whom a kick finds, but never to this node; see `trigger`.

        The kicks of a run that is on are sent when it is over (`triggers.held_kicks`).

        Raises:
            InvalidInputError: The question is refused.
            UnavailableError: Nobody could be asked who is to run, or it could not be sent.
            StateError: The disk refused to keep it.
        """
        kick = Kick.read(fields)
        ttl = fields.integer_or_none("ttl", minimum=1, maximum=MAX_TTL) or KICK_TTL
        tags = fields.parsed_list("tags", parse_tag, maximum=MAX_TAGS)
        receivers = await self._receivers(kick)
        call = sending.Outgoing(
            hosts=receivers, tags=tags, ttl=ttl, keyprefix=self._sender.keyprefix, keyttl=ttl
        )
        answer: dict[str, Any] = {"ok": True, "receivers": list(receivers), "held": False}
        if not receivers:
            return {**answer, "sent": [], "dropped": []}
        if run is None or not self._held.is_on(run):
            return {**answer, **await self._send(call, None, run)}
        return {**answer, "held": True, **self._hold(call, RunId(run))}

    def _hold(self, call: sending.Outgoing, run: RunId) -> dict[str, Any]:
        me, paths = NodeName(self._sender.signer.name), list(self._sender.paths(run))
        ways = {host: next_path(paths, me=me, receiver=host) for host in call.hosts}
        kept = [host for host, way in ways.items() if not isinstance(way, Loop)]
        if kept:
            self._held.hold(run, replace(call, hosts=tuple(kept)), uuid=str(uuid.uuid4()))
        dropped = {host: way.reason for host, way in ways.items() if isinstance(way, Loop)}
        return {"sent": kept, "dropped": _listed(dropped)}

    async def _receivers(self, kick: Kick) -> tuple[NodeName, ...]:
        found = await self._inventory.ask(kick.question)
        if isinstance(found, CouldNotAsk):
            raise UnavailableError(
                f"could not ask who is to run: {one_line(found.reason)}",
                where="kick",
                hint="'localpuppet query' asks the same by hand",
            )
        names = [name for name in found.answer.names if name != self._sender.signer.name]
        if len(names) > MAX_RECEIVERS:
            raise InvalidInputError(
                f"{len(names)} nodes are to run, the limit is {MAX_RECEIVERS}", where="kick"
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
        told = {"sent": list(sent.sent), "dropped": _listed(sent.dropped)}
        return {"ok": True, "uuid": sent.uuid, **told}


def _listed(dropped: Mapping[NodeName, str]) -> list[dict[str, str]]:
    return [{"node": node, "reason": reason} for node, reason in dropped.items()]
