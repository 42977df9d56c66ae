"""How the page has nodes do something: signed requests, and triggers, in the signer's name."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from localpuppet.errors import InvalidInputError, LocalpuppetError
from localpuppet.formats.names import RolloutId
from localpuppet.orchestrator.rollout.journal import Journals
from localpuppet.orchestrator.rollout.words.word import Said, Word, refusal
from localpuppet.triggers import sending
from localpuppet.web.deeds import NEEDS, Action, Deed
from localpuppet.wiring.fleet import FleetWiring, machine_name

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
        journals: The rollouts of this machine.
    """

    def __init__(
        self, fleet: FleetWiring, store: "Callable[[], Awaitable[KeyValue]]", journals: Journals
    ) -> None:
        self._fleet = fleet
        self._store = store
        self._journals = journals
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

    async def say(self, rollout: RolloutId, word: Word) -> str:
        """Say a word to the process that goes on with a rollout; return what came of it.

        Raises:
            LocalpuppetError: There is no such process, or it does not wait for that word.
        """
        return await asyncio.to_thread(self._say, rollout, word)

    def _say(self, rollout: RolloutId, word: Word) -> str:
        journal = self._journals.open(rollout)
        try:
            said = Said(word=word, caller=self.name, machine=machine_name())
            if problem := refusal(said, journal.state()):
                raise InvalidInputError(problem, where=str(rollout))
            if not journal.taken:
                raise InvalidInputError(
                    "no process goes on with it",
                    where=str(rollout),
                    hint=f"localpuppet rollout {word} {rollout}",
                )
            journal.say(word, self.name)
        finally:
            journal.close()
        return f"rollout {rollout} was told: {word}."

    async def _trigger(self, kv: "KeyValue", deed: Deed) -> str:
        fleet = self._fleet
        call = sending.Outgoing(
            hosts=(deed.node,),
            tags=(),
            ttl=TTL,
            keyprefix=fleet.node.fleet_settings.agent.keyprefix,
            keyttl=TTL,
        )
        sent = await fleet.send(call, kv, run=None)
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
