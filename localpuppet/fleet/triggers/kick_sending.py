"""Send the kicks of finished runs, once their changes are published, and log the result."""

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.text import shown_names
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.outage import ours
from localpuppet.fleet.triggers.held_kicks import HeldKick, HeldKicks
from localpuppet.fleet.triggers.sending import SendResult, send
from localpuppet.fleet.trust.signing import MessageSigner

# Seconds after a run for which its kicks wait for the publication of its changes.
PATIENCE = 10.0


@dataclass(slots=True, eq=False)
class KickSending:
    """Sends stored kicks.

    Attributes:
        held: The stored kicks.
        signer: This node.
        store: Returns the connected bus; raises `UnavailableError` if it is unreachable.
        clock: The node's clock.
        log: The agent's log.
    """

    held: HeldKicks
    _: KW_ONLY
    signer: MessageSigner
    store: Callable[[], Awaitable[KeyValue]]
    clock: Clock
    log: Log
    _logged: str = field(default="", init=False)

    async def step(self, *, notified: bool) -> None:
        """Send the kicks that may be sent; log failures, and try them again in the next step.

        Args:
            notified: Whether this node's changes are on the bus.
        """
        problems = []
        try:
            for run in self.held.runs():
                try:
                    await self._step(run, notified=notified)
                except StateError as error:
                    problems.append(str(error))  # one damaged file does not delay the others
        except LocalpuppetError as error:
            problems.append(str(error))
        problem = "; ".join(problems)
        if problem and problem != self._logged:
            self._warn(f"kicks wait: {problem}")
        self._logged = problem

    async def _step(self, run: RunId, *, notified: bool) -> None:
        kick = self.held.due(run)
        if kick is None:
            return
        if self.held.is_too_old(kick):
            self.held.drop(kick)
            self._warn(f"{_who(kick)} not kicked: the bus was unreachable for too long")
        elif notified or self.held.waited(kick) > PATIENCE:
            await self._send(kick)

    async def _send(self, kick: HeldKick) -> None:
        try:
            sent = await send(
                kick.call,
                kv=await ours(self.store()),
                signer=self.signer,
                paths=self.held.paths(kick),
                clock=self.clock,
                uuid=kick.uuid,
            )
        except InvalidInputError as error:
            # Its run is forgotten, or no receiver accepts the trigger: a retry cannot help.
            self._warn(f"{_who(kick)} not kicked: {error}")
        else:
            self._tell(kick, sent)
        self.held.drop(kick)

    def _tell(self, kick: HeldKick, sent: SendResult) -> None:
        if sent.sent:
            names = shown_names(sent.sent)
            self.log.info(f"run {kick.run} kicks {names} ({sent.uuid})", kind=LineKind.KICK)
        for node, reason in sent.dropped.items():
            self.log.info(f"{node} is not kicked: {reason}", kind=LineKind.KICK)

    def _warn(self, text: str) -> None:
        self.log.warning(text, kind=LineKind.KICK)


def _who(kick: HeldKick) -> str:
    few = len(kick.call.hosts) == 1
    return f"{shown_names(kick.call.hosts)} {'is' if few else 'are'}"
