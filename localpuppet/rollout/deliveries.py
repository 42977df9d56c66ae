"""Stage, apply, confirm and withdraw a rollout's release on nodes, by signed requests.

A node counts as rolled back only after it reports, signed, that this rollout's run applied the
previous release. Its agreement to go back is not enough.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.base.value import Value
from localpuppet.fleet.agent.confirmation import ConfirmationReport, Stage, reported_confirmation
from localpuppet.fleet.requests import request as messages
from localpuppet.fleet.requests import request_client
from localpuppet.fleet.triggers.cause import DROPPED
from localpuppet.rollout.events import NodeResult, NodeRun, NodeRunEnded, RolloutBegan, failed_run
from localpuppet.rollout.rollout_options import Delivery

Problems = Mapping[NodeName, str]


class NodeRunAnswer(Value):
    """The answer of a node that was asked to run: a result, if it is over or the node refused it.

    `look_again` if the node did not run because its last comparison is too old.
    """

    end: NodeRunEnded | None = None
    problem: str = ""
    look_again: bool = False


# A run that its node reports as over; without the end if the node has to be asked for it.
NodeRunReport = tuple[NodeRun, NodeRunEnded | None]


class StagingResult(Value):
    """The result of staging a release on nodes: serials newer than the nodes' own, and problems."""

    serials: Mapping[NodeName, int]
    problems: Problems


PATIENCE = 20.0  # seconds for a reply
MAX_REASON = 300


def line(value: Json) -> str:
    """Return a text of a node as one line of up to `MAX_REASON`; empty if it is not a text."""
    return one_line(value if isinstance(value, str) else "")[:MAX_REASON]


def problem_of(answer: request_client.NodeAnswer) -> str:
    """Return why a request failed, one line."""
    if answer.reply is None:
        return answer.problem
    return line(answer.reply.error or "")


# Seconds between requests for a nonce; after these the node run is requested again.
PAUSES = (0.1, 0.2, 0.4, 0.8)
# How often to ask a node that begins no confirmation before its result is accepted.
PATIENT = 10
_LEFT = (Stage.ROLLED_BACK, Stage.ROLLBACK_FAILED, Stage.SUPERSEDED)
_OWED = "it does not wait for a confirmation yet"
TRIES = 3  # how often an unresponsive node is asked to stage the release
AGAIN = 2.0  # seconds between them


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


class Deliveries:
    """Delivers the release of one rollout."""

    def __init__(
        self, client: request_client.RequestClient, *, began: RolloutBegan, delivery: Delivery
    ) -> None:
        self._client = client
        self._began = began
        self._delivery = delivery
        self._slots = asyncio.Semaphore(request_client.AT_ONCE)
        self._owed: Counter[NodeName] = Counter()  # how often a node began no confirmation
        self._took: set[tuple[NodeName, messages.DeployAction]] = set()

    async def unready(self, nodes: Collection[NodeName]) -> dict[NodeName, str]:
        """Return the nodes whose policy or version rejects the release, each with the reason."""
        may = messages.StatusRequest(may=self._delivery.rights)
        _, old = await request_client.next_serials(self._client, list(nodes), patience=PATIENCE)
        able = [node for node in nodes if node not in old]
        answers = await self._client.ask_all(able, "status", may, patience=PATIENCE)
        problems = {node: problem_of(old[node]) for node in nodes if node in old}
        return problems | {node: why for node in able if (why := _denied(answers[node]))}

    async def stage(self, nodes: Collection[NodeName], *, epoch: int) -> StagingResult:
        """Stage the rollout's release on nodes without applying it."""
        try:
            serials, silent = await request_client.next_serials(
                self._client, list(nodes), patience=PATIENCE, rollout=self._began.id
            )
        except UnavailableError as error:
            return StagingResult(serials={}, problems=dict.fromkeys(nodes, str(error)))
        problems = {node: problem_of(silent[node]) for node in nodes if node in silent}

        async def stage_on(node: NodeName) -> str:
            async with self._slots:
                return await self._staged(node, epoch, serials[node])

        others = [node for node in nodes if node not in problems]
        results = await asyncio.gather(*map(stage_on, others))
        problems |= {node: why for node, why in zip(others, results, strict=True) if why}
        able = {node: serials[node] for node in others if node not in problems}
        return StagingResult(serials=able, problems=problems)

    async def _staged(self, node: NodeName, epoch: int, serial: int) -> str:
        problem = ""
        for _ in range(TRIES):
            try:
                answer = await self._ask(node, messages.DeployAction.STAGE, epoch, serial)
            except UnavailableError as error:
                problem = str(error)
            else:
                if answer.reply is not None:
                    return "" if answer.ok else problem_of(answer)
                problem = answer.problem
            await asyncio.sleep(AGAIN)
        return problem

    async def move(self, turn: NodeRun, *, epoch: int, serial: int) -> NodeRunAnswer | None:
        """Switch a node to the release, or back, before its run; return why not, or its result."""
        deed = (
            messages.DeployAction.ROLL_BACK if self._is_back(turn) else messages.DeployAction.APPLY
        )
        if (turn.node, deed) in self._took:
            return None
        async with self._slots:
            answer = await self._ask(turn.node, deed, epoch, serial)
        if answer.reply is None:
            return NodeRunAnswer(problem=answer.problem)
        if not answer.ok:
            return NodeRunAnswer(end=failed_run(turn, problem_of(answer)))
        missing = await self._check_reported(turn, serial) if self._is_back(turn) else None
        if missing is None:
            self._took.add((turn.node, deed))
        return missing

    async def confirm(self, end: NodeRunEnded, *, epoch: int, serial: int) -> NodeRunAnswer:
        """Return the result of a node run after its release is confirmed; see `_confirm`."""
        if not self._is_back(end.node_run):
            if end.outcome in ("", DROPPED):  # nothing ran
                return NodeRunAnswer(end=end)
            rollout = claim_of(self._began, self._client, epoch=epoch)
            return await self._confirm(end, rollout=rollout, serial=serial)
        if end.result is not NodeResult.SUCCEEDED:
            return NodeRunAnswer(end=end)
        return await self._came_back(end)

    async def _confirm(
        self, end: NodeRunEnded, *, rollout: messages.RolloutReference, serial: int
    ) -> NodeRunAnswer:
        """Return the result of a node run once its release is confirmed, or the node left it."""
        problem = _OWED
        for pause in PAUSES:
            answer = await self._status(end.node_run.node)
            if not answer.ok:
                return NodeRunAnswer(problem=problem_of(answer))
            status = answer.result
            confirmation = reported_confirmation(status, serial=serial, rollout=self._began.id)
            if confirmation is None or confirmation.stage is Stage.CONFIRMED:
                return NodeRunAnswer(end=end)
            if confirmation.stage in _LEFT:
                return _left(end, confirmation, status)
            if confirmation.nonce:
                args = messages.Deploy(
                    release=self._delivery.release,
                    action=messages.DeployAction.CONFIRM,
                    serial=serial,
                    rollout=rollout,
                    nonce=confirmation.nonce,
                )
                answer = await self._client.ask(
                    end.node_run.node, "deploy", args, patience=PATIENCE
                )
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
        self._owed[end.node_run.node] += 1
        return self._owed[end.node_run.node] >= PATIENT

    async def _came_back(self, end: NodeRunEnded) -> NodeRunAnswer:
        """Return the result of a rollback run, verified with the node's own status."""
        status = await self._status(end.node_run.node)
        if not status.ok:
            return NodeRunAnswer(problem=problem_of(status))
        back, last = (mapping_of(status.result.get(key)) for key in ("rollback", "last_run"))
        if last.get("run") == end.run and back and last.get("release") == back.get("release"):
            return NodeRunAnswer(end=replace(end, reason=""))
        release = line(str(last.get("release") or "nothing"))
        reason = f"its newest run is of {release}, not of the release that the rollback restores"
        return NodeRunAnswer(end=replace(end, result=NodeResult.FAILED, reason=reason))

    async def _status(self, node: NodeName) -> request_client.NodeAnswer:
        return await self._client.ask(node, "status", messages.StatusRequest(), patience=PATIENCE)

    def _is_back(self, turn: NodeRun) -> bool:
        return turn.step > len(self._began.groups)

    async def _check_reported(self, turn: NodeRun, serial: int) -> NodeRunAnswer | None:
        """Return `NOT_REACHED` if a node reports that it never took the release.

        The caller has asked the node to leave the release before.
        """
        answer = await self._status(turn.node)
        if not answer.ok:
            return NodeRunAnswer(problem=problem_of(answer))
        reported = request_client.reported_assignment(answer.result)
        if reported == request_client.AssignmentReport(serial=serial, rollout=self._began.id):
            return None
        return NodeRunAnswer(end=NodeRunEnded(node_run=turn, result=NodeResult.NOT_REACHED))

    async def _ask(
        self, node: NodeName, deed: messages.DeployAction, epoch: int, serial: int
    ) -> request_client.NodeAnswer:
        rollout = claim_of(self._began, self._client, epoch=epoch)
        args = self._delivery.ask(deed, serial=serial, rollout=rollout)
        patience = self._began.options.timeout
        return await request_client.until_over(
            self._client, node, "deploy", args, patience=patience
        )


def claim_of(
    began: RolloutBegan, client: request_client.RequestClient, *, epoch: int
) -> messages.RolloutReference:
    """Return the rollout's identity for requests, also if another caller began the rollout."""
    caller = "" if began.caller == client.caller else began.caller
    return messages.RolloutReference(id=began.id, epoch=epoch, caller=caller)


def _denied(answer: request_client.NodeAnswer) -> str:
    if not answer.ok:
        return problem_of(answer)
    denied = mapping_of(answer.result.get("denied"))
    return line(str(next(iter(denied.values()), "")))
