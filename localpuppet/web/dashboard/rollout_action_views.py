"""The views of actions for rollouts: first the consequences, and after a confirmation the result.

Confirming that a rollout continues ends only the pause that the confirmation showed.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId
from localpuppet.base.machine.ports import LineKind
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.presence import UNRESPONSIVE, NodeRow
from localpuppet.rollout import commands
from localpuppet.rollout.commands import RolloutCommand
from localpuppet.rollout.rollout_report import ELSEWHERE, RolloutReport
from localpuppet.rollout.state import RolloutState
from localpuppet.web.access.http_limits import MAX_ACTION_NODES
from localpuppet.web.access.rules import Visitor
from localpuppet.web.dashboard.action_views import ActionProposal, ActionViews
from localpuppet.web.dashboard.actions import ActionOutcome, RolloutAction
from localpuppet.web.dashboard.differences import ChangeRow, changes
from localpuppet.web.dashboard.list_query import ListQuery
from localpuppet.web.dashboard.nodes import searched, tallies
from localpuppet.web.dashboard.releases import release_choices
from localpuppet.web.dashboard.rollout_actions import Groups, RolloutStart, rollout_consequences
from localpuppet.web.dashboard.rollout_previews import LOOK, RolloutPreview
from localpuppet.web.dashboard.template_renderer import NotThereError
from localpuppet.web.dashboard.view_context import Actor, ViewContext

START = "/rollouts/do/start"
# Starts that are followed, and releases to choose from.
MOST_LATE = 32
MOST_RELEASES = 50
# Releases of nodes that the new one is compared with, those of most nodes.
MOST_STEPS = 3
# No release is chosen at first, because the newest one has just failed.
DOUBTFUL = "?"


class ReleaseStep(Value):
    """How a release differs from the one that some nodes ran last, or why it is not compared."""

    before: str
    nodes: Sequence[NodeName]
    rows: Sequence[ChangeRow] = ()
    problem: str = ""
    preview: RolloutPreview | None = None
    no_preview: str = ""


class RolloutActionViews:
    """The views of actions for rollouts."""

    def __init__(self, context: ViewContext, views: ActionViews, actor: Actor) -> None:
        self._context = context
        self._views = views
        self._actor = actor
        self._late = BoundedDict[str, LateStart](MOST_LATE)

    async def act(self, request: Request) -> Response:
        """Show the consequences of an action for a rollout; for a POST, do it."""
        course = RolloutAction.parse(request.path_params["action"])
        rollout = RolloutId.parse(request.path_params["rollout"])
        try:
            report = await asyncio.to_thread(self._context.rollouts.report, rollout)
        except InvalidInputError as error:
            raise NotThereError(error.what) from error
        return await self._views.answer(
            request,
            ActionProposal(
                label=course.label,
                subject=f"rollout {rollout}",
                back=f"/rollouts/{rollout}",
                will=rollout_consequences(course, report),
                read=lambda form: (
                    str(course),
                    lambda: self._course(report, course, form.get("about", "")),
                ),
                about=_about(report.state, course),
            ),
        )

    async def start(self, request: Request) -> Response:
        """Show the form of a new rollout, then its plan with names; for a confirmed POST, start it.

        The token is valid for exactly the nodes and options that the confirmation showed. A problem
        leads back to the form, with what was typed.
        """
        form = await self._views.form(request)
        words = dict(form)
        if waits := words.get("waits"):
            return await self._late_start(waits)
        other, is_open = words.get("other", "").strip(), not ({"release", "older"} & words.keys())
        words["release"] = other or words.get("release", "")
        chosen = [word for key, word in form if key == "node"]
        if "edit" in words or (is_open and not other):
            problem = "Choose a release, or none." if "other" in words else ""
            return await self._form(words, chosen, problem=problem, code=400 if problem else 200)
        try:
            proposal = await self._proposal(words, chosen)
            if "token" not in words:
                reads = self._context.reads_code(Visitor.of(request.scope))
                proposal = replace(proposal, step=await self._steps(proposal, reads=reads))
        except LocalpuppetError as error:
            return await self._form(words, chosen, problem=str(error), code=400)
        return await self._views.answer(request, proposal, form)

    async def _form(
        self, words: Mapping[str, str], chosen: Sequence[str], *, problem: str = "", code: int = 200
    ) -> Response:
        context = self._context
        tallied = await asyncio.to_thread(context.memory.read, tallies, None)
        _, _, roles, _ = await asyncio.to_thread(context.memory.read, searched)
        try:
            rollouts = await asyncio.to_thread(context.rollouts.rows)
        except StateError:
            rollouts = []  # the list of rollouts shows the error
        choices = await asyncio.to_thread(
            release_choices, context.staged, tallied, rollouts, most=MOST_RELEASES
        )
        newest = next(iter(choices), None)
        is_good = newest is not None and not (newest.failed or newest.rollout)
        return self._views.showing.page(
            "start.html",
            code=code,
            words=words,
            chosen=chosen,
            choices=choices,
            first="" if newest is None else newest.release if is_good else DOUBTFUL,
            roles=roles,
            problem=problem,
            waits="",
        )

    async def _proposal(self, words: Mapping[str, str], chosen: Sequence[str]) -> ActionProposal:
        """Return the rollout to confirm; its plan is made before that."""
        groups: Groups = ()
        names = [NodeName.parse(word) for word in chosen]
        selection = {key: words[key] for key in ("query", "role") if words.get(key, "").strip()}
        left_out: Sequence[str] = ()
        RolloutStart.read(words, names)  # an invalid option is reported before the plan
        if words.get("older"):
            names, left_out = await self._running_older(words["older"])
        if names:
            selection = {"nodes": ",".join(names)}
        elif not (selection or words.get("all")):
            raise InvalidInputError("name the nodes by a query, such as role=web", where="nodes")
        if "token" not in words and len(names) <= MAX_ACTION_NODES:
            groups = await self._actor.plan(selection)
            names = sorted({name for group in groups for name in group})
        if not 0 < len(names) <= MAX_ACTION_NODES:
            raise InvalidInputError(
                f"selects {len(names)} nodes, must be 1 to {MAX_ACTION_NODES}",
                where="rollout",
                hint="select other nodes, or run 'localpuppet rollout run' in a terminal",
            )
        start = RolloutStart.read(words, names)
        known = await self._views.known(names)
        rows = [row or NodeRow(node=name) for name, row in known.items()]
        proposal = ActionProposal(
            label="Start a rollout",
            subject=start.subject,
            back="/rollouts",
            will=tuple(start.consequences(groups, rows, left_out)),
            read=lambda _: (str(start), lambda: self._begin(start, proposal)),
            about=start.digest,
            rows=rows,
            command=start.command,
            options=start.fields,
            again=lambda problem: self._form(
                {"release": "", "on_failure": "", **start.fields}, names, problem=problem, code=409
            ),
        )
        return proposal

    async def _steps(self, proposal: ActionProposal, *, reads: bool) -> Sequence[ReleaseStep]:
        """Return how the release differs from those that the nodes ran last.

        Args:
            reads: Whether the user may read releases.
        """
        if not (release := (proposal.options or {}).get("release")):
            return ()
        after, steps = ReleasePath.parse(release, where="release"), []
        ran = Counter(row.release for row in proposal.rows if row.release not in ("", after))
        for before, _ in ran.most_common(MOST_STEPS):
            nodes = [NodeName(row.node) for row in proposal.rows if row.release == before]
            step = ReleaseStep(before=before, nodes=nodes)
            try:
                path = ReleasePath.parse(before, where="release")
                found = await asyncio.to_thread(self._context.staged.differences, path, after)
                step = replace(step, rows=changes(found))
                if reads and self._context.previews is not None:
                    preview = await self._context.previews.begin(path, after, nodes)
                    step = replace(step, preview=preview)
            except LocalpuppetError as error:
                if step.rows:
                    step = replace(step, no_preview=str(error))
                else:
                    step = replace(step, problem=str(error))
            steps.append(step)
        return steps

    async def preview(self, request: Request) -> Response:
        """Show a preview, or that it has not ended yet."""
        previews, reads = self._context.previews, self._context.reads_code
        one = None if previews is None else previews.named(request.path_params["preview"])
        if one is None or not reads(Visitor.of(request.scope)):
            raise NotThereError("this preview is not known", hint="choose the nodes again")
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK):
                await one.ended.wait()
        return self._views.showing.page("preview.html", one=one)

    async def _begin(self, start: RolloutStart, proposal: ActionProposal) -> ActionOutcome:
        """Start a rollout; one that has not begun soon is followed, wherever the user goes."""
        late = LateStart(
            start=start, proposal=proposal, task=asyncio.create_task(self._actor.start(start))
        )
        done, _ = await asyncio.wait({late.task}, timeout=self._context.begin_patience)
        if done:
            return ActionOutcome(text=f"rollout {late.task.result()}", page=late.page)
        self._late[start.digest] = late
        late.task.add_done_callback(lambda _: self._note_failure(late))
        return ActionOutcome(text="it has not begun yet", page=late.page)

    def _note_failure(self, late: "LateStart") -> None:
        if not late.problem:
            return
        text = f"The rollout of {late.start.subject} did not start: {late.problem}"
        self._views.showing.unseen[late.page] = text
        self._context.log.info(f"{self._actor.name}: {text}", kind=LineKind.REQUEST)
        recording = self._views.record(str(late.start), late.proposal, None, late.problem)
        late.recording = asyncio.create_task(recording)
        self._context.fleet.stir()

    async def _late_start(self, digest: str) -> Response:
        """Show that a rollout has not begun yet, or what came of it."""
        late, showing = self._late.get(digest), self._views.showing
        if late is None:
            raise NotThereError("this start is not known", hint="see the list of rollouts")
        if not late.task.done():
            return showing.page("start.html", waits=late.start.subject, problem="")
        if showing.unseen.pop(late.page, None):
            self._context.fleet.stir()
        if late.problem and late.proposal.again is not None:
            return await late.proposal.again(late.problem)
        return RedirectResponse(late.page, 303)

    async def _running_older(self, release: str) -> tuple[list[NodeName], Sequence[str]]:
        """Return the nodes whose last run applied an older release: with an agent, and without."""
        rows = await self._views.listed(ListQuery(older=release))
        older = {row.node for row in rows}
        without = {row.node for row in rows if row.state == UNRESPONSIVE}
        if not older - without:
            raise InvalidInputError("no node with a running agent is behind it", where=release)
        return sorted(map(NodeName.parse, older - without)), sorted(older & without)

    async def _course(
        self, report: RolloutReport, course: RolloutAction, about: str
    ) -> str | ActionOutcome:
        rollout = report.state.began.id
        if report.word == ELSEWHERE:
            raise InvalidInputError("is continued on another machine", where=str(rollout))
        if course is RolloutAction.RESUME:
            text = await self._actor.resume(rollout)
            return ActionOutcome(text=text, page=f"/rollouts/{rollout}")
        return await self._actor.say(rollout, RolloutCommand(course), about)


def _about(state: RolloutState, course: RolloutAction) -> str:
    """Return what a command refers to: the pause that it ends, or the changes that it approves."""
    if course is RolloutAction.APPROVE and state.differing:
        turn = min(state.differing)
        return commands.about(turn.node, state.differing[turn])
    return commands.identify_pause(state) if course is RolloutAction.CONTINUE else ""


@dataclass(slots=True, eq=False, kw_only=True)
class LateStart:
    """A rollout whose process has not begun it yet, or not when the user saw an answer."""

    start: RolloutStart
    proposal: ActionProposal
    task: asyncio.Task[RolloutId]
    recording: asyncio.Task[None] | None = None

    @property
    def problem(self) -> str:
        """Return why it did not begin; empty if it did, or may still do so."""
        ended = self.task.done() and not self.task.cancelled()
        error = self.task.exception() if ended else None
        return "" if error is None else str(error)

    @property
    def page(self) -> str:
        """Return the page that shows what comes of it."""
        began = self.task.done() and not self.task.cancelled() and self.task.exception() is None
        if began:
            return f"/rollouts/{self.task.result()}"
        return f"{START}?waits={self.start.digest}"
