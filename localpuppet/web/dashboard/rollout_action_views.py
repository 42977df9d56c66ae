"""The views of actions for rollouts: first the consequences, and after a confirmation the result.

Confirming that a rollout continues ends only the pause that the confirmation showed.
"""

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.fleet.inventory.node_row import UNRESPONSIVE, NodeRow
from localpuppet.rollout.commands import RolloutCommand, identify_pause
from localpuppet.rollout.rollout_report import ELSEWHERE, RolloutReport
from localpuppet.web.access.http_limits import MAX_ACTION_NODES
from localpuppet.web.dashboard.action_views import ActionProposal, ActionViews
from localpuppet.web.dashboard.list_query import ListQuery
from localpuppet.web.dashboard.rollout_actions import (
    Groups,
    RolloutAction,
    RolloutStart,
    rollout_consequences,
)
from localpuppet.web.dashboard.template_renderer import NotThereError
from localpuppet.web.dashboard.view_context import Actor, ViewContext


class RolloutActionViews:
    """The views of actions for rollouts."""

    def __init__(self, context: ViewContext, views: ActionViews, actor: Actor) -> None:
        self._context = context
        self._views = views
        self._actor = actor

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
                about=identify_pause(report.state) if course is RolloutAction.CONTINUE else "",
            ),
        )

    async def start(self, request: Request) -> Response:
        """Show the form of a new rollout, then its plan with names; for a confirmed POST, start it.

        The token is valid for exactly the nodes and options that the confirmation showed.
        """
        form = await self._views.form(request)
        words = dict(form)
        groups: Groups = ()
        selection = {key: words[key] for key in ("query", "role") if words.get(key, "").strip()}
        names = [NodeName.parse(word) for key, word in form if key == "node"]
        left_out: Sequence[str] = ()
        RolloutStart.read(words, names)  # an invalid option is reported before the plan
        if words.get("older"):
            names, left_out = await self._running_older(words["older"])
        if names:
            selection = {"nodes": ",".join(names)}
        elif not (selection or words.get("all")):
            return self._views.showing.page("start.html", words=words)
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
        return await self._views.answer(
            request,
            ActionProposal(
                label="Start a rollout",
                subject="1 node" if len(names) == 1 else f"{len(names)} nodes",
                back="/rollouts",
                will=start.consequences(groups, left_out),
                read=lambda _: (str(start), lambda: self._actor.start(start)),
                about=start.digest,
                rows=[row or NodeRow(node=name) for name, row in known.items()],
                command=start.command,
                options=start.options,
            ),
            form,
        )

    async def _running_older(self, release: str) -> tuple[list[NodeName], Sequence[str]]:
        """Return the nodes whose last run applied an older release: with an agent, and without."""
        rows = await self._views.listed(ListQuery(older=release))
        older = {row.node for row in rows}
        without = {row.node for row in rows if row.state == UNRESPONSIVE}
        if not older - without:
            raise InvalidInputError("no node with a running agent is behind it", where=release)
        return sorted(map(NodeName.parse, older - without)), sorted(older & without)

    async def _course(self, report: RolloutReport, course: RolloutAction, about: str) -> str:
        rollout = report.state.began.id
        if report.word == ELSEWHERE:
            raise InvalidInputError("is continued on another machine", where=str(rollout))
        if course is RolloutAction.RESUME:
            return await self._actor.resume(rollout)
        return await self._actor.say(rollout, RolloutCommand(course), about)
