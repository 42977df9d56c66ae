"""The views of actions: first the consequences, and after a confirmation the result.

- A GET does nothing. An action requires a token from a confirmation in the same session for the
  same action on the same nodes; a token is valid once, for ten minutes.
- A confirmation freezes the selected nodes as names. A query is evaluated before it, never after.
- Confirming that a rollout continues ends only the pause that the confirmation showed.
- Each action is a log line with user, action, target and result, also if it was refused or the end
  of the dashboard cut it off.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from hashlib import sha256
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId
from localpuppet.base.formats.text import shown_names
from localpuppet.base.machine.ports import LineKind
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.presence import UNRESPONSIVE, NodeRow
from localpuppet.rollout import commands
from localpuppet.rollout.commands import RolloutCommand
from localpuppet.rollout.rollout_report import ELSEWHERE, RolloutReport
from localpuppet.rollout.state import RolloutState
from localpuppet.web.access.http_limits import MAX_ACTION_NODES
from localpuppet.web.access.rules import LoopbackDoor, Visitor
from localpuppet.web.dashboard import actions
from localpuppet.web.dashboard.actions import ActionOutcome, RolloutAction
from localpuppet.web.dashboard.differences import ChangeRow, changes
from localpuppet.web.dashboard.list_query import NODES, ListQuery
from localpuppet.web.dashboard.nodes import of_names, searched, tallies
from localpuppet.web.dashboard.releases import release_choices
from localpuppet.web.dashboard.rollout_actions import Groups, RolloutStart, rollout_consequences
from localpuppet.web.dashboard.rollout_previews import LOOK, RolloutPreview
from localpuppet.web.dashboard.signing_actor import SigningActor
from localpuppet.web.dashboard.view_context import NotThereError, TemplateRenderer, ViewContext

# Bytes of a form, and fields in it: a list of the longest names, and one of selected rows.
MAX_FORM = MAX_ACTION_NODES * 256 + 8 * 1024
MAX_FIELDS = MAX_ACTION_NODES + 16
# Actions that run at the same time.
AT_ONCE = 4
# The result of an action that the dashboard's end or an internal error cut off.
UNKNOWN = "the result is unknown"
FORM = "application/x-www-form-urlencoded"


# Reads a form: what it asks for, for the log, and what does it.
Act = Callable[[], Awaitable[str | actions.ActionOutcome]]
ReadForm = Callable[[Mapping[str, str]], tuple[str, Act]]
FormFields = Sequence[tuple[str, str]]


class ReleaseStep(Value):
    """How a release differs from the one that some nodes ran last, or why it is not compared."""

    before: str
    nodes: Sequence[NodeName]
    rows: Sequence[ChangeRow] = ()
    problem: str = ""
    preview: RolloutPreview | None = None
    no_preview: str = ""


class ActionProposal(Value):
    label: str
    subject: str
    back: str
    will: tuple[str, ...]
    read: ReadForm
    holds: bool = False  # whether the form asks for the reason and the length of a hold
    about: str = ""
    rows: Sequence[NodeRow] = ()
    command: str = ""
    # What the confirmation sends besides the names of the nodes; `None` without options.
    options: Mapping[str, str] | None = None
    # Shows the form with what was typed, and why the action failed; `None` without a form.
    again: Callable[[str], Awaitable[Response]] | None = None
    # How the release of a rollout differs from those that the nodes ran.
    step: Sequence[ReleaseStep] = ()

    @property
    def named(self) -> str:
        """The subject for the log, with the names of some nodes."""
        names = f" ({shown_names([row.node for row in self.rows])})" if len(self.rows) > 1 else ""
        return f"{self.subject}{names}"


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


@dataclass(slots=True, eq=False)
class ActionViews:
    """The views of actions; `listed` raises if a query failed."""

    context: ViewContext
    showing: TemplateRenderer
    _: KW_ONLY
    listed: Callable[[ListQuery], Awaitable[Sequence[NodeRow]]]
    actor: SigningActor
    door: LoopbackDoor
    _slots: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(AT_ONCE), init=False
    )
    _late: BoundedDict[str, LateStart] = field(
        default_factory=lambda: BoundedDict(MOST_LATE), init=False
    )

    async def nodes(self, request: Request) -> Response:
        """Show the consequences of an action for nodes; for a confirmed POST, do it.

        The selection is names of nodes (`node`), or with `all` the query of a list. A confirmation
        has names only, and its token is valid for exactly these.
        """
        action = actions.Action.parse(request.path_params["action"])
        form = await self.form(request)
        rows = await self._selected(form)
        names = tuple(NodeName.parse(row.node) for row in rows)

        def read(words: Mapping[str, str]) -> tuple[str, Act]:
            deed = actions.NodeAction.read(action, names, words)
            return str(deed), lambda: self.actor.act(deed)

        only_name = names[0] if len(names) == 1 else None
        return await self.answer(
            request,
            ActionProposal(
                label=action.label,
                subject=only_name or f"{len(names)} nodes",
                back=f"/nodes/{only_name}" if only_name else "/nodes",
                will=actions.consequences(action, rows),
                read=read,
                holds=action is actions.Action.HOLD,
                about=sha256(" ".join(names).encode()).hexdigest(),
                rows=rows,
                command=actions.NodeAction(action=action, nodes=names, length="2h").command,
            ),
            form,
        )

    async def _selected(self, form: FormFields) -> Sequence[NodeRow]:
        if dict(form).get("all"):
            query = {key: word for key, word in form if key in NODES.filters}
            rows = await self.listed(ListQuery.parse(query))
        else:
            # A node that the dashboard forgot after the confirmation still gets the request.
            names = [NodeName.parse(word) for key, word in form if key == "node"]
            known = await self.known(names)
            if names and not any(known.values()):
                raise NotThereError(
                    f"no node has the name {names[0]}", hint="see the list of nodes"
                )
            rows = [item or NodeRow(node=name) for name, item in known.items()]
        if not rows:
            raise InvalidInputError(
                "no node is selected", where="action", hint="select rows in the list of nodes"
            )
        if len(rows) > MAX_ACTION_NODES:
            raise InvalidInputError(
                f"{len(rows)} nodes are selected, an action takes at most {MAX_ACTION_NODES}",
                where="action",
                hint="use a narrower filter, a command in a terminal, or a rollout:"
                " 'localpuppet rollout run'",
            )
        return rows

    async def known(self, names: Sequence[str]) -> Mapping[str, NodeRow | None]:
        """Return nodes by name; `None` for those that the dashboard does not know."""
        return await asyncio.to_thread(self.context.memory.read, of_names, names)

    async def answer(
        self, request: Request, proposal: ActionProposal, form: FormFields | None = None
    ) -> Response:
        """Show a proposal; for a POST with its token, do it and show the result."""
        words = dict(await self.form(request) if form is None else form)
        if request.method != "POST" or "token" not in words:
            return self._confirm(request, proposal)
        # The nodes that get the request, whatever the form calls them.
        about = proposal.about if proposal.rows else words.get("about", "")
        subject = self._subject(request, about)
        if not self.door.tokens.take(words["token"], subject):
            problem = "Nothing was done: the confirmation was used before, or has expired."
            return self._confirm(request, proposal, problem=problem, code=403)
        try:
            asked, act = proposal.read(words)
        except InvalidInputError as error:
            return self._confirm(request, proposal, problem=str(error), code=400)
        came, refused = None, UNKNOWN
        try:
            async with self._slots:
                done = await act()
            came = actions.ActionOutcome(text=done) if isinstance(done, str) else done
        except LocalpuppetError as error:
            refused = str(error)
        finally:
            end = refused if came is None else came.line
            line = f"{self.actor.name}: {proposal.named}: {asked}: {end}"
            self.context.log.info(line, kind=LineKind.REQUEST)
        await self.record(asked, proposal, came, refused)
        if came is not None and came.page:
            return RedirectResponse(came.page, 303)
        if came is None and proposal.again is not None:
            return await proposal.again(refused)
        return self.showing.page(
            "acted.html",
            code=409 if came is None or came.failed else 200,
            proposal=proposal,
            here=request.url.path,
            came=came,
            refused=refused,
        )

    async def record(
        self, asked: str, proposal: ActionProposal, came: actions.ActionOutcome | None, refused: str
    ) -> None:
        """Keep what the dashboard sent."""
        failed = came is None or came.failed
        end = refused if came is None else came.text
        at, caller = self.context.clock.now().timestamp(), self.actor.name
        record = actions.sent_record(caller, asked, end, proposal.named, at=at, failed=failed)
        await self.context.memory.keep_sent(self.actor.machine, record, self.context.log)

    def _confirm(
        self, request: Request, proposal: ActionProposal, *, problem: str = "", code: int = 200
    ) -> Response:
        return self.showing.page(
            "act.html",
            code=code,
            proposal=proposal,
            here=request.url.path,
            me=self.actor.name,
            token=self.door.tokens.give(self._subject(request, proposal.about)),
            problem=problem,
        )

    def _subject(self, request: Request, about: str) -> str:
        session = self.door.session(request.headers.get("cookie", ""))
        return f"{session} {request.url.path} {about}"

    async def form(self, request: Request) -> FormFields:
        """Return the fields of a form: of the body of a POST, otherwise of the URL."""
        if request.method != "POST":
            return request.query_params.multi_items()
        if request.headers.get("content-type", "").partition(";")[0].strip() != FORM:
            raise InvalidInputError("is not a form", where="request")
        body = b""
        try:
            async with asyncio.timeout(self.context.form_patience):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > MAX_FORM:
                        raise InvalidInputError("is too large", where="form")
        except (TimeoutError, ClientDisconnect) as error:
            raise InvalidInputError("did not arrive completely", where="form") from error
        try:
            return parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
        except ValueError as error:
            raise InvalidInputError("is not a form", where="request") from error

    async def act(self, request: Request) -> Response:
        """Show the consequences of an action for a rollout; for a POST, do it."""
        course = RolloutAction.parse(request.path_params["action"])
        rollout = RolloutId.parse(request.path_params["rollout"])
        try:
            report = await asyncio.to_thread(self.context.rollouts.report, rollout)
        except InvalidInputError as error:
            raise NotThereError(error.what) from error
        return await self.answer(
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
        form = await self.form(request)
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
                reads = self.context.reads_code(Visitor.of(request.scope))
                proposal = replace(proposal, step=await self._steps(proposal, reads=reads))
        except LocalpuppetError as error:
            return await self._form(words, chosen, problem=str(error), code=400)
        return await self.answer(request, proposal, form)

    async def _form(
        self, words: Mapping[str, str], chosen: Sequence[str], *, problem: str = "", code: int = 200
    ) -> Response:
        context = self.context
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
        return self.showing.page(
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
            groups = await self.actor.plan(selection)
            names = sorted({name for group in groups for name in group})
        if not 0 < len(names) <= MAX_ACTION_NODES:
            raise InvalidInputError(
                f"selects {len(names)} nodes, must be 1 to {MAX_ACTION_NODES}",
                where="rollout",
                hint="select other nodes, or run 'localpuppet rollout run' in a terminal",
            )
        start = RolloutStart.read(words, names)
        known = await self.known(names)
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

        A user who `reads` releases gets previews, too.
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
                found = await asyncio.to_thread(self.context.staged.differences, path, after)
                step = replace(step, rows=changes(found))
                if reads and self.context.previews is not None:
                    preview = await self.context.previews.begin(path, after, nodes)
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
        previews, reads = self.context.previews, self.context.reads_code
        one = None if previews is None else previews.named(request.path_params["preview"])
        if one is None or not reads(Visitor.of(request.scope)):
            raise NotThereError("this preview is not known", hint="choose the nodes again")
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK):
                await one.ended.wait()
        return self.showing.page("preview.html", one=one)

    async def _begin(self, start: RolloutStart, proposal: ActionProposal) -> ActionOutcome:
        """Start a rollout; one that has not begun soon is followed, wherever the user goes."""
        late = LateStart(
            start=start, proposal=proposal, task=asyncio.create_task(self.actor.start(start))
        )
        done, _ = await asyncio.wait({late.task}, timeout=self.context.begin_patience)
        if done:
            return ActionOutcome(text=f"rollout {late.task.result()}", page=late.page)
        self._late[start.digest] = late
        late.task.add_done_callback(lambda _: self._note_failure(late))
        return ActionOutcome(text="it has not begun yet", page=late.page)

    def _note_failure(self, late: LateStart) -> None:
        if not late.problem:
            return
        text = f"The rollout of {late.start.subject} did not start: {late.problem}"
        self.showing.unseen[late.page] = text
        self.context.log.info(f"{self.actor.name}: {text}", kind=LineKind.REQUEST)
        recording = self.record(str(late.start), late.proposal, None, late.problem)
        late.recording = asyncio.create_task(recording)
        self.context.fleet.stir()

    async def _late_start(self, digest: str) -> Response:
        """Show that a rollout has not begun yet, or what came of it."""
        late, showing = self._late.get(digest), self.showing
        if late is None:
            raise NotThereError("this start is not known", hint="see the list of rollouts")
        if not late.task.done():
            return showing.page("start.html", waits=late.start.subject, problem="")
        if showing.unseen.pop(late.page, None):
            self.context.fleet.stir()
        if late.problem and late.proposal.again is not None:
            return await late.proposal.again(late.problem)
        return RedirectResponse(late.page, 303)

    async def _running_older(self, release: str) -> tuple[list[NodeName], Sequence[str]]:
        """Return the nodes whose last run applied an older release: with an agent, and without."""
        rows = await self.listed(ListQuery(older=release))
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
            text = await self.actor.resume(rollout)
            return ActionOutcome(text=text, page=f"/rollouts/{rollout}")
        return await self.actor.say(rollout, RolloutCommand(course), about)


START = "/rollouts/do/start"
# Starts that are followed, and releases to choose from.
MOST_LATE = 32
MOST_RELEASES = 50
# Releases of nodes that the new one is compared with, those of most nodes.
MOST_STEPS = 3
# No release is chosen at first, because the newest one has just failed.
DOUBTFUL = "?"


def _about(state: RolloutState, course: RolloutAction) -> str:
    """Return what a command refers to: the pause that it ends, or the changes that it approves."""
    if course is RolloutAction.APPROVE and state.differing:
        turn = min(state.differing)
        return commands.about(turn.node, state.differing[turn])
    return commands.identify_pause(state) if course is RolloutAction.CONTINUE else ""
