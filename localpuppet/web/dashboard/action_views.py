"""The views of actions: first the consequences, and after a confirmation the result.

- A GET does nothing. An action requires a token from a confirmation in the same session for the
  same action on the same nodes; a token is valid once, for ten minutes.
- A confirmation freezes the selected nodes as names. A query is evaluated before it, never after.
- Each action is a log line with user, action, target and result, also if it was refused or the end
  of the dashboard cut it off.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from hashlib import sha256
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import shown_names
from localpuppet.base.machine.ports import LineKind
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.presence import NodeRow
from localpuppet.web.access.http_limits import MAX_ACTION_NODES
from localpuppet.web.access.rules import LoopbackDoor
from localpuppet.web.dashboard import actions
from localpuppet.web.dashboard.list_query import NODES, ListQuery
from localpuppet.web.dashboard.nodes import of_names
from localpuppet.web.dashboard.template_renderer import NotThereError, TemplateRenderer
from localpuppet.web.dashboard.view_context import Actor, ViewContext

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


class ActionProposal(Value):
    """An action to confirm.

    Attributes:
        holds: Whether the form asks for the reason and the length of a hold.
        options: What the confirmation sends besides the names of the nodes; `None` without options.
        again: Shows the form with what was typed, and why the action failed; `None` without a form.
        step: What the confirmation shows besides, for the template.
    """

    label: str
    subject: str
    back: str
    will: tuple[str, ...]
    read: ReadForm
    holds: bool = False
    about: str = ""
    rows: Sequence[NodeRow] = ()
    command: str = ""
    options: Mapping[str, str] | None = None
    again: Callable[[str], Awaitable[Response]] | None = None
    step: object = None

    @property
    def named(self) -> str:
        """The subject for the log, with the names of some nodes."""
        names = f" ({shown_names([row.node for row in self.rows])})" if len(self.rows) > 1 else ""
        return f"{self.subject}{names}"


@dataclass(slots=True, eq=False)
class ActionViews:
    """The views of actions; `listed` raises if a query failed."""

    context: ViewContext
    showing: TemplateRenderer
    _: KW_ONLY
    listed: Callable[[ListQuery], Awaitable[Sequence[NodeRow]]]
    actor: Actor
    door: LoopbackDoor
    _slots: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(AT_ONCE), init=False
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
        """Return the rows of the selected nodes."""
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
