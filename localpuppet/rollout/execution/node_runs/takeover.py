"""Find out from nodes whether another controller has taken this rollout over.

    a node refuses -> ask it which controller it obeys -> another one, in this or a later epoch

One node alone cannot end a rollout: `believes` also considers the checkpoint on the bus.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

from localpuppet.base.errors import BusyError, InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.formats.times import parse_time
from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.fleet.requests.request import Arguments, requesting_rollout
from localpuppet.fleet.requests.rollout import RolloutReference
from localpuppet.fleet.requests.status import StatusRequest
from localpuppet.rollout.execution.events import RolloutBegan, RolloutTakenOver
from localpuppet.rollout.execution.replies import PATIENCE

if TYPE_CHECKING:
    from localpuppet.fleet.requests.client import RequestClient


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverCheck:
    """Investigates refusals of nodes.

    Attributes:
        believes: Returns whether a node's report is trusted; if it is, this process has already
            handed the rollout over.
    """

    client: "RequestClient"
    began: RolloutBegan
    believes: Callable[[RolloutTakenOver], Awaitable[bool]]

    async def heed(self, node: NodeName, args: Arguments) -> None:
        """Check whether a node refused a request because another controller has the rollout.

        Raises:
            BusyError: Another controller has it.
        """
        rollout = requesting_rollout(args)
        if rollout is None:
            return
        asked = StatusRequest(
            rollout=RolloutReference(id=rollout.id, epoch=1, caller=rollout.caller)
        )
        try:
            answer = await self.client.ask(node, "status", asked, patience=PATIENCE)
        except UnavailableError:
            return  # the node refuses again when the bus is reachable
        if answer.reply is None or not answer.ok:
            return
        takeover = self._parse_takeover(answer.reply.result.get("rollout_controller"))
        mine = rollout.taken_over_by(self.client.caller) or self.began.caller
        if takeover is None or takeover.epoch < rollout.epoch:
            return
        if (takeover.epoch, takeover.caller) != (rollout.epoch, mine) and await self.believes(
            takeover
        ):
            raise BusyError(f"rollout {rollout.id} was taken over {takeover.who}")

    def _parse_takeover(self, raw: Json) -> RolloutTakenOver | None:
        """Return the controller that a node obeys; `None` if its report is malformed."""
        fields = mapping_of(raw)
        epoch, by, since = (fields.get(key) for key in ("epoch", "by", "since"))
        if not isinstance(epoch, int) or not isinstance(by, str) or not isinstance(since, str):
            return None
        try:
            at = parse_time(since).astimezone(UTC)
            caller = SignerName.parse_caller(by).caller if by else self.began.caller
        except (ValueError, OverflowError, InvalidInputError):
            return None
        return RolloutTakenOver(caller=caller, epoch=epoch, since=at)
