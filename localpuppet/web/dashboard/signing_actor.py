"""Sends the dashboard's requests to nodes: signed, in the name of the signer."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from itertools import takewhile
from tempfile import TemporaryFile
from threading import Thread
from typing import TYPE_CHECKING

from localpuppet.base.errors import BusyError, InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats import strict_json
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId
from localpuppet.base.formats.times import show_duration
from localpuppet.base.machine.own_program import own_words
from localpuppet.fleet.app import FleetApp, machine_name
from localpuppet.fleet.triggers import sending
from localpuppet.node.app import program_environment
from localpuppet.rollout.commands import RolloutCommand, SentCommand, refusal
from localpuppet.rollout.journal import Journals, resumable
from localpuppet.web.dashboard.actions import (
    NEEDS,
    Action,
    ActionOutcome,
    ActionResult,
    NodeAction,
    NodeVerdict,
)
from localpuppet.web.dashboard.rollout_actions import Groups, RolloutStart

if TYPE_CHECKING:
    from localpuppet.fleet.bus.key_value import KeyValue
    from localpuppet.fleet.requests.request import Arguments
    from localpuppet.fleet.requests.request_client import NodeAnswer

# Seconds that a node has to answer, and for which a trigger is good.
PATIENCE = 10.0
TTL = 180
# Seconds for the start of a process that continues a rollout, and between checks; bytes of what it
# says when it does not.
BEGINS = 20.0
LOOK = 0.1
# Seconds after which a process that has not begun its rollout is given up.
STARTS = 600.0
MAX_SAID = 8 * 1024
# Seconds for a release to get to nodes.
STAGES = 600.0
# Seconds for the plan of a rollout.
PLANNING = 60.0


class SigningActor:
    """Sends requests in the name of the user who started the dashboard.

    A process must begin to continue a rollout within `begins` seconds.
    """

    def __init__(
        self,
        fleet: FleetApp,
        store: "Callable[[], Awaitable[KeyValue]]",
        journals: Journals,
        *,
        words: Sequence[str] = (),
        begins: float = BEGINS,
    ) -> None:
        self._fleet = fleet
        self._store = store
        self._journals = journals
        self._words = words or own_words()
        self._within = begins
        self.name = fleet.signer.name.caller
        self.machine = machine_name()

    async def act(self, deed: NodeAction) -> ActionOutcome:
        """Request an action of nodes; return the result of each.

        If the bus is unreachable, which nodes received the request is unknown.
        """
        kv = await self._store()
        if deed.action is Action.TRIGGER:
            return ActionOutcome.of_nodes(deed, await self._trigger(kv, deed))
        answers = await self._fleet.requests(kv).ask_all(
            deed.nodes, NEEDS[deed.action], _arguments(deed), patience=PATIENCE
        )
        return ActionOutcome.of_nodes(
            deed, (_result(NodeName(name), answer) for name, answer in answers.items())
        )

    async def stage(self, release: ReleasePath, nodes: Sequence[NodeName]) -> ActionOutcome:
        """Ask nodes to fetch and verify a release; return the result of each, as `act`."""
        from localpuppet.fleet.requests.request import Deploy, DeployAction
        from localpuppet.fleet.requests.request_client import deploy_to

        client = self._fleet.requests(await self._store())
        args = Deploy(release=release, action=DeployAction.STAGE, serial=1)
        answers = await deploy_to(client, nodes, args, patience=STAGES)
        return ActionOutcome.of_results(
            _result(NodeName(name), answer) for name, answer in answers.items()
        )

    async def say(self, rollout: RolloutId, word: RolloutCommand, about: str) -> str:
        """Send a command and its subject to the controller of a rollout; return the result."""
        return await asyncio.to_thread(self._say, rollout, word, about)

    def _say(self, rollout: RolloutId, word: RolloutCommand, about: str) -> str:
        with closing(self._journals.open(rollout)) as journal:
            sent = SentCommand(command=word, caller=self.name, machine=machine_name(), about=about)
            if problem := refusal(sent, journal.state()):
                raise InvalidInputError(problem, where=str(rollout))
            if not journal.taken:
                raise InvalidInputError(
                    "no process runs the rollout",
                    where=str(rollout),
                    hint=f"run 'localpuppet rollout resume {rollout}'",
                )
            journal.say(word, self.name, about)
        return f"rollout {rollout} received: {word}."

    async def resume(self, rollout: RolloutId) -> str:
        """Start a process that continues a rollout; return the result."""
        with closing(self._journals.open(rollout)) as journal:
            if journal.taken:
                raise BusyError("another process runs the rollout", where=str(rollout))
            resumable(journal, self.name)
            before = len(journal.events())
            words = ("rollout", "resume", str(rollout), "--json")
            problem = await self._spawn(words, lambda: len(journal.events()) > before, self._within)
        if problem is None:
            raise LocalpuppetError(
                f"the new process has not continued the rollout within {self._within:.0f} s"
                " and may still do so",
                where=str(rollout),
                hint=f"run 'localpuppet rollout status {rollout}'",
            )
        if problem:
            raise LocalpuppetError(problem, hint=f"run 'localpuppet rollout resume {rollout}'")
        return f"A process continues rollout {rollout}."

    async def plan(self, selection: Mapping[str, str]) -> Groups:
        """Return the groups of a rollout by `query` or `role`."""
        options = [f"--{name}={value}" for name, value in selection.items()]
        return await asyncio.to_thread(self._plan, ("rollout", "plan", "--json", *options))

    def _plan(self, words: Sequence[str]) -> Groups:
        try:
            done = subprocess.run(
                self._command(words),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=program_environment(),
                timeout=PLANNING,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise LocalpuppetError(f"made no plan within {PLANNING:.0f} s", where="plan") from None
        if done.returncode:
            raise InvalidInputError(command_problem(done.stderr))
        groups = strict_json.loads(done.stdout)["groups"]
        return [[NodeName.parse(run["node"]) for run in group["runs"]] for group in groups]

    async def start(self, start: RolloutStart) -> RolloutId:
        """Start a process that runs a rollout; return the rollout once it has begun."""
        before = {*self._journals.ids()}
        begun: list[RolloutId] = []

        def begins() -> bool:
            new = (rollout for rollout in self._journals.ids() if rollout not in before)
            begun.extend(self._same(start, new))
            return bool(begun)

        problem = await self._spawn(("rollout", "run", *start.words, "--json"), begins, STARTS)
        if problem is None:
            raise LocalpuppetError(
                f"the new process has not started the rollout within {show_duration(STARTS)}",
                hint="run 'localpuppet rollout status'",
            )
        if problem:
            raise LocalpuppetError(problem)
        return begun[0]

    def begun(self, start: RolloutStart, since: float) -> RolloutId | None:
        """Return a rollout of the same release that this signer has begun here since a time."""
        oldest = RolloutId.of(datetime.fromtimestamp(since, UTC), "0000", None)
        return next(self._same(start, takewhile(oldest.__le__, self._journals.ids())), None)

    def _same(self, start: RolloutStart, rollouts: Iterable[RolloutId]) -> Iterator[RolloutId]:
        """Yield the rollouts of the same release and nodes that this signer has begun."""
        for rollout in rollouts:
            with closing(self._journals.open(rollout)) as journal, suppress(StateError):
                began, options = journal.state().began, start.options
                same = began.caller == self.name and (
                    (began.options.delivery, began.options.noop) == (options.delivery, options.noop)
                )
                nodes = {node for group in began.groups for node in group}
                if same and (nodes <= {*start.nodes} or not start.nodes):
                    yield rollout

    def _command(self, words: Sequence[str]) -> list[str]:
        return [*self._words, "--root", str(self._fleet.node.settings.root), *words]

    async def _spawn(
        self, words: Sequence[str], begins: Callable[[], bool], within: float
    ) -> str | None:
        """Start a detached process; return why it ended before it began, or empty once it begins.

        The result is `None` if neither is known after `within` seconds.
        """
        with TemporaryFile() as errors:
            process = subprocess.Popen(
                self._command(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=program_environment(),
                start_new_session=True,
            )
            # Reaps the process without delaying the dashboard's end.
            Thread(target=process.wait, daemon=True).start()
            clock = self._fleet.node.clock
            deadline = clock.monotonic() + within
            while clock.monotonic() < deadline and process.poll() is None:
                if await asyncio.to_thread(begins):
                    return ""
                await asyncio.sleep(LOOK)
            if begins():
                return ""
            errors.seek(0)
            return None if process.poll() is None else command_problem(errors.read(MAX_SAID))

    async def _trigger(self, kv: "KeyValue", deed: NodeAction) -> list[ActionResult]:
        fleet = self._fleet
        call = sending.Outgoing(
            hosts=deed.nodes, tags=(), ttl=TTL, keyprefix=fleet.settings.agent.keyprefix, keyttl=TTL
        )
        sent = await fleet.send(call, kv, run=None)
        return [
            *(ActionResult(node=name, verdict=NodeVerdict.SENT) for name in sent.sent),
            *(
                ActionResult(node=name, verdict=NodeVerdict.REFUSED, reason=reason)
                for name, reason in sent.dropped.items()
            ),
        ]


def _result(node: NodeName, answer: "NodeAnswer") -> ActionResult:
    if answer.reply is None:
        return ActionResult(node=node, verdict=NodeVerdict.NO_ANSWER, reason=answer.problem)
    if not answer.ok:
        reason = answer.reply.error or "rejects the request"
        return ActionResult(node=node, verdict=NodeVerdict.REFUSED, reason=reason)
    return ActionResult(node=node, verdict=NodeVerdict.ACCEPTED)


def command_problem(errors: bytes) -> str:
    """Return the last line that a command wrote to standard error."""
    lines = errors[-MAX_SAID:].decode("utf-8", "replace").splitlines()
    return lines[-1].removeprefix("localpuppet: error: ") if lines else "the process did not start"


def _arguments(deed: NodeAction) -> "Arguments":
    from localpuppet.fleet.requests.request import Disable, Enable, RunOnce

    if deed.action is Action.HOLD:
        return Disable(message=deed.message, length=deed.length or None)
    return RunOnce(noop=True) if deed.action is Action.NOOP else Enable()
