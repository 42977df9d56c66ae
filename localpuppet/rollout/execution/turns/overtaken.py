"""Whether somebody else goes on with a rollout that this process goes on with: its nodes know.

    a node refuses -> it is asked who speaks to it for this rollout -> somebody else, later

Owns: what a node's word on that means. Refuses to know: the heads on the bus, which have a say in
whether the word is believed: one node alone is not to end a rollout.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

from localpuppet.base.errors import BusyError, InvalidInputError, UnavailableError
from localpuppet.base.formats.names import SignerName
from localpuppet.base.formats.times import parse_time
from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.fleet.requests.deploy import Deploy
from localpuppet.fleet.requests.request import Disable, Enable, RunOnce
from localpuppet.fleet.requests.rollout import OfRollout
from localpuppet.fleet.requests.status import StatusRequest
from localpuppet.rollout.execution.events import Began, Overtaken
from localpuppet.rollout.execution.replies import PATIENCE

if TYPE_CHECKING:
    from localpuppet.base.formats.names import NodeName
    from localpuppet.fleet.requests.client import RequestClient
    from localpuppet.fleet.requests.request import Arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaking:
    """Looks at refusals.

    Attributes:
        client: Asks nodes.
        began: The rollout.
        believes: Returns whether a node's word is believed; by then nothing more is done here.
    """

    client: "RequestClient"
    began: Began
    believes: Callable[[Overtaken], Awaitable[bool]]

    async def heed(self, node: "NodeName", args: "Arguments") -> None:
        """Look whether a node refused something because somebody else goes on with the rollout.

        Raises:
            BusyError: So it is.
        """
        rollout = args.rollout if isinstance(args, Disable | Enable | RunOnce | Deploy) else None
        if rollout is None:
            return
        asked = StatusRequest(rollout=OfRollout(id=rollout.id, epoch=1, caller=rollout.caller))
        try:
            answer = await self.client.ask(node, "status", asked, patience=PATIENCE)
        except UnavailableError:
            return  # what it refused, it refuses again when the bus is back
        if answer.reply is None or not answer.ok:
            return
        told = self._told(answer.reply.result.get("spoken_for"))
        mine = rollout.taken_over_by(self.client.caller) or self.began.caller
        if told is None or told.epoch < rollout.epoch:
            return
        if (told.epoch, told.caller) != (rollout.epoch, mine) and await self.believes(told):
            raise BusyError(f"rollout {rollout.id} was taken over {told.who}")

    def _told(self, raw: Json) -> Overtaken | None:
        """Return who speaks for the rollout, as a node says; `None` where it says nonsense."""
        told = mapping_of(raw)
        epoch, by, since = (told.get(key) for key in ("epoch", "by", "since"))
        if not isinstance(epoch, int) or not isinstance(by, str) or not isinstance(since, str):
            return None
        try:
            at = parse_time(since).astimezone(UTC)
            caller = SignerName.parse_caller(by).caller if by else self.began.caller
        except (ValueError, OverflowError, InvalidInputError):
            return None
        return Overtaken(caller=caller, epoch=epoch, since=at)
