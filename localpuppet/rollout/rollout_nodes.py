"""Reach the nodes of a rollout over the bus: signed requests out, results by reply or presence.

A presence that reports a result is verified before use; a result that needs more than presence
has (changes, entries, confirmations, a failure's reason) is requested from the node.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace

from localpuppet.base.errors import IntegrityError, InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.fleet.bus import key_value, layout
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.inventory.outbox import AwaitedEntry
from localpuppet.fleet.inventory.presence import OTHER_AGENT, believe
from localpuppet.fleet.requests import request as messages
from localpuppet.fleet.requests.request import Arguments, Disable, Enable, RunOnce
from localpuppet.fleet.requests.request_client import AT_ONCE, NodeAnswer, RequestClient
from localpuppet.fleet.triggers.cause import TriggerOutcome, succeeded
from localpuppet.fleet.triggers.inbox import StepState
from localpuppet.fleet.trust.policy import TAKEOVER
from localpuppet.fleet.trust.signing import Verifier, claimed_payload
from localpuppet.node.puppet.changes import PredictedChanges
from localpuppet.node.runs.holds import rollout_owner
from localpuppet.rollout import events
from localpuppet.rollout.deliveries import (
    MAX_REASON,
    PATIENCE,
    Deliveries,
    NodeRunAnswer,
    NodeRunReport,
    Problems,
    StagingResult,
    claim_of,
    line,
    problem_of,
)

AGAIN = 0.5  # seconds between attempts to watch an unreachable bus
NEEDED = ("disable", "enable", "runonce")
MAX_DURATIONS = 5
MAX_RELEASES = 20
UNTOLD = "cannot predict its changes: its agent has 'run_cmd'"
STALE = "too much time passed between its noop run and its run, several times"
_UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LONGEST = 7 * 86400.0  # seconds: no run takes longer


class FleetNodes:
    """The nodes of one rollout.

    No method raises because of a single node or an unreachable bus: an unresponsive node is a
    result.
    """

    def __init__(
        self,
        kv: KeyValue,
        *,
        client: RequestClient,
        verifier: Verifier,
        began: events.RolloutBegan,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._kv = kv
        self._note = note
        self._client = client
        self._verifier = verifier
        self._began = began
        self._owner = rollout_owner(began.caller, began.id)
        self._needed = NEEDED if client.caller == began.caller else (*NEEDED, TAKEOVER)
        # One more than the groups: the runs that take nodes back to their previous release.
        self._own_steps = len(began.groups) + 1
        self._steps = {
            messages.step_uuid(self._owner, step): step for step in range(1, self._own_steps + 1)
        }
        self._producers = {node for need in began.needs for node in need.producers}
        self._durations: dict[NodeName, tuple[float, ...]] = {}
        self._releases: dict[NodeName, str] = {}
        self._tell: set[NodeName] = set()  # nodes that can report what a run would change
        self._await: set[NodeName] = set()  # nodes that can wait for entries of others
        self._slots = asyncio.Semaphore(AT_ONCE)
        delivery = began.options.delivery
        self._deliveries = (
            None if delivery is None else Deliveries(client, began=began, delivery=delivery)
        )

    async def ready(self, nodes: Collection[NodeName]) -> Problems:
        """Return the nodes that cannot take part, each with the reason; nothing changes."""
        answers = await self._client.ask_all(
            list(nodes), "status", messages.StatusRequest(may=self._needed), patience=PATIENCE
        )
        problems = {}
        for node in nodes:
            status = answers[node].result
            self._durations[node] = _durations(status.get("durations"))
            self._releases[node] = line(mapping_of(status.get("last_run")).get("release"))
            if status.get("awaits_entries") is True:
                self._await.add(node)
            if status.get("reports_changes") is True:
                self._tell.add(node)
            untold = UNTOLD if self._began.approval and node not in self._tell else ""
            if why := self._unready(answers[node]) or untold:
                problems[node] = why
        if self._deliveries is not None:
            able = [node for node in nodes if node not in problems]
            problems |= await self._deliveries.unready(able)
        return problems

    def last_runs(self) -> events.LastRunsReported:
        """Return what the nodes that `ready` asked report of their last runs.

        Nodes without good runs or reports are left out.
        """
        durations = {node: self._durations[node] for node in sorted(self._durations)}
        releases = Counter(filter(None, self._releases.values())).most_common(MAX_RELEASES)
        return events.LastRunsReported(
            durations={node: seconds for node, seconds in durations.items() if seconds},
            releases=dict(releases),
        )

    def _unready(self, answer: NodeAnswer) -> str:
        if not answer.ok:
            return problem_of(answer)
        denied, holds = answer.result.get("denied"), answer.result.get("holds")
        if not isinstance(denied, dict):
            return "sent a malformed reply"
        if denied:
            return line(next(iter(denied.values())))
        if answer.result.get("other_agent_since"):
            return OTHER_AGENT
        for hold in holds if isinstance(holds, list) else []:
            if isinstance(hold, dict) and hold.get("owner") != self._owner:
                owner = line(hold.get("owner")).partition("/")[0]  # a rollout's reason names it
                return f"on hold: {line(hold.get('reason'))} (held by {owner})"
        return ""

    async def hold(
        self, nodes: Collection[NodeName], *, epoch: int, seconds: float | None = None
    ) -> Problems:
        """Put nodes on hold for some seconds (`None`: `HOLD`), or renew that; return the others."""
        rollout = self._claim(epoch)
        what = "failed in rollout" if seconds else "rollout"
        message = f"{what} {self._began.id}: {self._began.title}"
        length = f"{seconds or events.HOLD:.0f}"
        args = Disable(message=message[:MAX_REASON], length=length, rollout=rollout)
        return await self._ask_all(nodes, "disable", args)

    def _claim(self, epoch: int) -> messages.RolloutReference:
        return claim_of(self._began, self._client, epoch=epoch)

    def _claim_step(self, epoch: int, step: int) -> messages.RolloutStep:
        claim = self._claim(epoch)
        return messages.RolloutStep(id=claim.id, epoch=epoch, step=step, caller=claim.caller)

    async def release(self, nodes: Collection[NodeName], *, epoch: int) -> Problems:
        """Release nodes; return those that did not confirm it, with the reason."""
        rollout = self._claim(epoch)
        return await self._ask_all(nodes, "enable", Enable(rollout=rollout))

    async def _ask_all(self, nodes: Collection[NodeName], action: str, args: Arguments) -> Problems:
        try:
            answers = await self._client.ask_all(list(nodes), action, args, patience=PATIENCE)
        except UnavailableError as error:
            return dict.fromkeys(nodes, str(error))
        return {node: problem_of(answers[node]) for node in nodes if not answers[node].ok}

    async def stage(self, nodes: Collection[NodeName], *, epoch: int) -> StagingResult:
        """Stage the rollout's release on nodes without applying it."""
        if self._deliveries is None:
            return StagingResult(serials={}, problems={})
        return await self._deliveries.stage(nodes, epoch=epoch)

    async def start(
        self,
        turn: events.NodeRun,
        *,
        epoch: int,
        serial: int,
        after: tuple[AwaitedEntry, ...],
        looked: int = 0,
    ) -> NodeRunAnswer:
        """Ask a node to run, or for the result of that run: a node runs once for each step.

        If the rollout has a release, the node first switches to it; in the step after the last
        group it first switches back.

        Args:
            serial: The serial of the release's assignment on the node; 0 without a release.
            after: Inventory entries of other nodes to wait for. Nodes of earlier versions do not.
            looked: The step of the comparison whose changes are approved; 0 without approvals.
        """
        if self._deliveries is None:
            return await self._run(turn, epoch=epoch, after=after, looked=looked)
        try:
            moved = await self._deliveries.move(turn, epoch=epoch, serial=serial)
            if moved is not None:
                return moved
            asked = await self._run(turn, epoch=epoch, after=after, looked=looked)
            if asked.end is None:
                return asked
            return await self._deliveries.confirm(asked.end, epoch=epoch, serial=serial)
        except UnavailableError as error:
            return NodeRunAnswer(problem=str(error))

    async def _run(
        self, turn: events.NodeRun, *, epoch: int, after: tuple[AwaitedEntry, ...], looked: int
    ) -> NodeRunAnswer:
        options = self._began.options
        args = RunOnce(
            noop=options.noop,
            tags=options.tags,
            rollout=self._claim_step(epoch, turn.step),
            awaited_entries=after if turn.node in self._await else (),
            changes_salt=self._began.salt if options.noop and turn.node in self._tell else "",
            noop_step=looked,
        )
        return await self._ask_to_run(turn, args)

    async def look(
        self, turn: events.NodeRun, *, epoch: int, step: int, after: tuple[AwaitedEntry, ...]
    ) -> NodeRunAnswer:
        """Ask a node what a run would change, with noop, or for the result of that question.

        `step` identifies the comparison; `ends` reports it like a run.
        """
        self._steps[messages.step_uuid(self._owner, step)] = step
        args = RunOnce(
            noop=True,
            tags=self._began.options.tags,
            rollout=self._claim_step(epoch, step),
            awaited_entries=after if turn.node in self._await else (),
            changes_salt=self._began.salt,
        )
        asked = await self._ask_to_run(events.NodeRun(step, turn.node), args)
        end = asked.end
        if (
            end is not None
            and end.result is events.NodeResult.SUCCEEDED
            and not end.predicted_changes
        ):
            end = replace(end, result=events.NodeResult.FAILED, reason=asked.problem)
        return replace(asked, end=end)

    async def _ask_to_run(self, turn: events.NodeRun, args: RunOnce) -> NodeRunAnswer:
        try:
            async with self._slots:
                answer = await self._client.ask(turn.node, "runonce", args, patience=PATIENCE)
        except UnavailableError as error:
            return NodeRunAnswer(problem=str(error))
        if answer.reply is None:
            return NodeRunAnswer(problem=answer.problem)
        if not answer.ok:
            return NodeRunAnswer(end=events.failed_run(turn, problem_of(answer)))
        if answer.result.get("repeat_noop") is True:
            return NodeRunAnswer(end=events.failed_run(turn, STALE), look_again=True)
        end, problem = _end(turn, mapping_of(answer.result.get("step"))), ""
        if end is not None and self._began.needs:
            end = replace(end, entry=_entry(turn.node, answer.result.get("entry")))
        if end is not None and args.changes_salt:
            foreseen, problem = _foreseen(mapping_of(answer.result.get("changes")))
            end = replace(end, predicted_changes=foreseen)
        return NodeRunAnswer(end=end, problem=problem)

    async def ends(self) -> AsyncGenerator[NodeRunReport, None]:
        """Yield the nodes' reports of runs that may have ended, without an end."""
        nodes = {str(node): node for group in self._began.groups for node in group}
        unreachable = False
        while True:
            try:
                async with aclosing(self._kv.watch(layout.PRESENCE)) as changes:
                    async for change in changes:
                        if unreachable:
                            self._note("the bus is reachable again")
                        unreachable = False
                        for news in self._reports(change, nodes):
                            yield news
            except UnavailableError as error:
                if not unreachable:
                    self._note(f"cannot reach the bus; trying again: {error}")
                unreachable = True
                await asyncio.sleep(AGAIN)

    def _reports(
        self, change: key_value.Change, nodes: Mapping[str, NodeName]
    ) -> Iterator[NodeRunReport]:
        if isinstance(change, key_value.KeyRemoval):
            # The agent has ended: the node is asked again for results that it has not reported.
            gone = nodes.get(change.key.removeprefix(layout.PRESENCE))
            if gone is not None:
                yield from ((events.NodeRun(step, gone), None) for step in self._steps.values())
        for entry in key_value.entries(change):
            node = nodes.get(entry.key.removeprefix(layout.PRESENCE))
            if node is not None:
                yield from self._parse_reports(node, entry.value)

    def _parse_reports(self, node: NodeName, token: bytes) -> list[NodeRunReport]:
        """Return the finished steps of this rollout that a presence reports."""
        if not self._names_a_step(token):
            return []
        status = believe(self._verifier, node, token)
        outcomes, copied = status.get("outcomes"), bool(status.get("other_agent_since"))
        results = map(TriggerOutcome.of_published, outcomes if isinstance(outcomes, list) else [])
        return [
            self._news(events.NodeRun(self._steps[result.uuid], node), result, copied=copied)
            for result in results
            if result is not None and result.sender == self._owner and result.uuid in self._steps
        ]

    def _names_a_step(self, token: bytes) -> bool:
        """Return whether a presence mentions a step of this rollout; others are not verified."""
        try:
            payload = claimed_payload(token)
        except IntegrityError:
            return False
        return any(uuid.decode() in self._steps for uuid in _UUID.findall(payload))

    def _news(
        self, turn: events.NodeRun, trigger_outcome: TriggerOutcome, *, copied: bool
    ) -> NodeRunReport:
        """Return a report of a node run; with its result if a reply would not add to it."""
        more = (
            self._deliveries is not None  # whether the release is confirmed
            or self._began.options.noop  # the changes
            or turn.step > self._own_steps  # the changes, too: a comparison before the run
            or turn.node in self._producers  # the entry that it published
        )
        more = more and not copied
        if more or not succeeded(trigger_outcome.outcome):  # the reason of a failure
            return (turn, None)
        run = None if trigger_outcome.run is None else line(trigger_outcome.run)
        end = events.NodeRunEnded(
            node_run=turn,
            result=events.NodeResult.FAILED if copied else events.NodeResult.SUCCEEDED,
            outcome=line(trigger_outcome.outcome),
            run=run,
            reason=OTHER_AGENT if copied else "",
        )
        return (turn, end)


def _end(turn: events.NodeRun, fields: Mapping[str, Json]) -> events.NodeRunEnded | None:
    """Return the result of a node run from the node's step record; `None` if it is not over."""
    if fields.get("state") != StepState.OVER:
        return None
    outcome, run = line(fields.get("outcome")), fields.get("run")
    return events.NodeRunEnded(
        node_run=turn,
        result=events.NodeResult.SUCCEEDED if succeeded(outcome) else events.NodeResult.FAILED,
        outcome=outcome,
        run=line(run) if isinstance(run, str) else None,
        reason="" if succeeded(outcome) else line(fields.get("reason") or outcome),
    )


def _entry(node: NodeName, fields: Json) -> AwaitedEntry | None:
    """Return the inventory entry that a node reports; `None` if missing or malformed."""
    try:
        entry = AwaitedEntry.read(fields)
    except InvalidInputError:
        return None
    return entry if entry.node == node else None


def _foreseen(raw: Mapping[str, Json]) -> tuple[PredictedChanges | None, str]:
    """Return the changes that a node reports, or `None` and the reason."""
    if "problem" in raw:
        return None, line(raw["problem"])
    try:
        return PredictedChanges.read(raw), ""
    except InvalidInputError as error:
        return None, line(str(error))


def _durations(listed: Json) -> tuple[float, ...]:
    """Return the run durations that a node reports, in seconds, without malformed ones."""
    seconds = [
        float(item)
        for item in (listed if isinstance(listed, list) else [])
        if isinstance(item, int | float) and not isinstance(item, bool) and 0 <= item <= LONGEST
    ]
    return tuple(seconds[:MAX_DURATIONS])
