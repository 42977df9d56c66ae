"""How the page has nodes do something: signed requests, and triggers, in the signer's name."""

import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from localpuppet.errors import LocalpuppetError
from localpuppet.triggers import sending
from localpuppet.web.deeds import NEEDS, Action, Deed
from localpuppet.wiring.fleet import FleetWiring

if TYPE_CHECKING:
    from localpuppet.bus.key_value import KeyValue
    from localpuppet.requests.request import Arguments

# Seconds that a node has to answer, and for which a trigger is good.
PATIENCE = 10.0
TTL = 180


class SigningActor:
    """Asks nodes in the name of whoever started the page; an `Actor`.

    Args:
        fleet: The parts of a node of a fleet.
        store: Returns the bus, connected.
    """

    def __init__(self, fleet: FleetWiring, store: "Callable[[], Awaitable[KeyValue]]") -> None:
        self._fleet = fleet
        self._store = store
        self.name = fleet.signer.name.caller

    async def act(self, deed: Deed) -> str:
        """Have a node do something; return what came of it, one line.

        Raises:
            LocalpuppetError: The node refuses or is silent, or the bus is away.
        """
        kv = await self._store()
        if deed.action is Action.TRIGGER:
            return await self._trigger(kv, deed)
        answer = await self._fleet.requests(kv).ask(
            deed.node, NEEDS[deed.action], _arguments(deed), patience=PATIENCE
        )
        if answer.reply is None:
            raise LocalpuppetError(answer.problem, where=str(deed.node))
        if not answer.ok:
            raise LocalpuppetError(answer.reply.error or "it refuses", where=str(deed.node))
        return _CAME[deed.action].format(node=deed.node)

    async def _trigger(self, kv: "KeyValue", deed: Deed) -> str:
        fleet = self._fleet
        call = sending.Outgoing(
            hosts=(deed.node,),
            tags=(),
            ttl=TTL,
            keyprefix=fleet.node.fleet_settings.agent.keyprefix,
            keyttl=TTL,
        )
        sent = await sending.send(
            call,
            kv=kv,
            signer=fleet.signer,
            paths=fleet.paths(None),
            clock=fleet.node.clock,
            uuid=str(uuid.uuid4()),
        )
        if deed.node in sent.dropped:
            raise LocalpuppetError(sent.dropped[deed.node], where=str(deed.node))
        return (
            f"{deed.node} was sent a trigger. It says nothing to who triggers it: its run shows"
            " on its page, and a refusal in its own log."
        )


_CAME = {
    Action.NOOP: "{node} accepted: a noop run starts after this.",
    Action.HOLD: "{node} is on hold.",
    Action.ENABLE: "The hold on {node} in your name has ended.",
}


def _arguments(deed: Deed) -> "Arguments":
    from localpuppet.requests.request import Disable, Enable, RunOnce

    if deed.action is Action.HOLD:
        return Disable(message=deed.message, length=deed.length or None)
    return RunOnce(noop=True) if deed.action is Action.NOOP else Enable()
