"""Confirm the release that a rollout brought to a node: send the node its nonce, signed.

A node that went back by itself counts as rolled back only after it reports, signed, a good run of
the previous release. Its announcement to go back is not enough.

What a node that is cut off does is in `fleet.agent.confirmation`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING

from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.fleet.requests.confirmation import ConfirmationReport, Stage, reported_confirmation
from localpuppet.fleet.requests.deploy import Deploy, DeployAction
from localpuppet.fleet.requests.rollout import RolloutReference
from localpuppet.fleet.requests.status import StatusRequest
from localpuppet.rollout.execution.events import NodeResult, NodeRunEnded, RolloutBegan
from localpuppet.rollout.execution.nodes import NodeRunAnswer
from localpuppet.rollout.execution.replies import MAX_REASON, PATIENCE, line, problem_of

if TYPE_CHECKING:
    from localpuppet.base.formats.names import NodeName
    from localpuppet.fleet.requests.client import RequestClient
    from localpuppet.rollout.execution.delivery import Delivery

# Seconds between requests for a nonce; after these the node run is requested again.
PAUSES = (0.1, 0.2, 0.4, 0.8)
# How often to ask a node that begins no confirmation before its result is accepted.
PATIENT = 10
_LEFT = (Stage.ROLLED_BACK, Stage.ROLLBACK_FAILED, Stage.SUPERSEDED)
_OWED = "it does not wait for a confirmation yet"


@dataclass(slots=True, eq=False)
class Confirmations:
    """Confirms the release of one rollout on its nodes."""

    client: "RequestClient"
    _: KW_ONLY
    began: RolloutBegan
    delivery: "Delivery"
    _owed: dict[str, int] = field(default_factory=dict, init=False)

    async def confirm(
        self, end: NodeRunEnded, *, rollout: RolloutReference, serial: int
    ) -> NodeRunAnswer:
        """Return the result of a node run once its release is confirmed, or the node left it.

        Args:
            end: The result of the run, whether successful or not.
            rollout: The rollout's identity for requests.
            serial: The serial of the release's assignment on the node.
        """
        problem = _OWED
        for pause in PAUSES:
            status = await status_of(self.client, end.node_run.node)
            if isinstance(status, NodeRunAnswer):
                return status
            confirmation = reported_confirmation(status, serial=serial, rollout=self.began.id)
            if confirmation is None or confirmation.stage is Stage.CONFIRMED:
                return NodeRunAnswer(end=end)
            if confirmation.stage in _LEFT:
                return _left(end, confirmation, status)
            if confirmation.nonce:
                args = Deploy(
                    release=self.delivery.release,
                    action=DeployAction.CONFIRM,
                    serial=serial,
                    rollout=rollout,
                    nonce=confirmation.nonce,
                )
                answer = await self.client.ask(end.node_run.node, "deploy", args, patience=PATIENCE)
                if answer.ok:
                    return NodeRunAnswer(end=end)
                problem = problem_of(answer)
            else:
                problem = confirmation.reason or (
                    _OWED if confirmation.stage is None else f"it is {confirmation.stage}"
                )
            await asyncio.sleep(pause)
        if problem == _OWED and self._is_tired_of(end):
            return NodeRunAnswer(end=end)
        return NodeRunAnswer(problem=f"its release is not confirmed: {problem}")

    def _is_tired_of(self, end: NodeRunEnded) -> bool:
        """Return whether a node failed to begin a confirmation `PATIENT` times.

        The node probably has no record of the run.
        """
        asked = self._owed[end.node_run.node] = self._owed.get(end.node_run.node, 0) + 1
        return asked >= PATIENT


async def status_of(
    client: "RequestClient", node: "NodeName"
) -> Mapping[str, Json] | NodeRunAnswer:
    """Return a node's status, or a `NodeRunAnswer` with the reason for the missing status."""
    answer = await client.ask(node, "status", StatusRequest(), patience=PATIENCE)
    if answer.reply is None or not answer.ok:
        return NodeRunAnswer(problem=problem_of(answer))
    return answer.reply.result


def _left(
    end: NodeRunEnded, confirmation: ConfirmationReport, status: Mapping[str, Json]
) -> NodeRunAnswer:
    """Return the result of a node run after the node reported that it left the release."""
    if confirmation.stage is Stage.SUPERSEDED:
        return _ended(end, NodeResult.FAILED, f"was taken from the release: {confirmation.reason}")
    if confirmation.stage is Stage.ROLLBACK_FAILED:
        return _ended(
            end, NodeResult.ROLLBACK_FAILED, f"could not roll back: {confirmation.reason}"
        )
    back, last = mapping_of(status.get("rollback")), mapping_of(status.get("last_run"))
    if not back or last.get("release") != back.get("release") or last.get("run") == end.run:
        return NodeRunAnswer(problem="reports a rollback, but no run of the previous release")
    return _ended(
        end,
        NodeResult.ROLLED_BACK,
        f"rolled back to {line(last.get('release'))}: {confirmation.reason}",
    )


def _ended(end: NodeRunEnded, result: NodeResult, reason: str) -> NodeRunAnswer:
    return NodeRunAnswer(end=replace(end, result=result, reason=reason[:MAX_REASON]))
