"""The views of actions: first the consequences, and after a confirmation the result.

- A GET does nothing. An action requires a token from a confirmation in the same session for the
  same action; a token is valid once, for ten minutes.
- Each action is a log line with user, action, target and result, also if it was refused or the end
  of the dashboard cut it off.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.ports import LineKind
from localpuppet.web.access.loopback import LoopbackDoor
from localpuppet.web.dashboard.actions import (
    Action,
    NodeAction,
    consequences,
)
from localpuppet.web.dashboard.template_renderer import NotThereError, TemplateRenderer
from localpuppet.web.dashboard.view_context import Actor, ViewContext

# Bytes of a form, and fields in it.
MAX_FORM = 8 * 1024
MAX_FIELDS = 8
# Actions that run at the same time.
AT_ONCE = 4
# The result of an action that the dashboard's end or an internal error cut off.
UNKNOWN = "the result is unknown"
FORM = "application/x-www-form-urlencoded"


# Reads a form: what it asks for, for the log, and what does it.
ReadForm = Callable[[Mapping[str, str]], tuple[str, Callable[[], Awaitable[str]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionProposal:
    """An action to confirm.

    Attributes:
        label: What it does, as on its button.
        subject: What it is for.
        back: The page to return to.
        will: The consequences, sentence by sentence.
        read: Reads the form of the confirmation.
        holds: Whether the form asks for the reason and the length of a hold.
        about: What the confirmation showed; it is valid for nothing that comes later.
    """

    label: str
    subject: str
    back: str
    will: tuple[str, ...]
    read: ReadForm
    holds: bool = False
    about: str = ""


class ActionViews:
    """The views of actions.

    Args:
        context: The data and services of all views.
        showing: Shows templates.
        actor: Sends requests.
        door: Knows sessions, and gives tokens.
    """

    def __init__(
        self, context: ViewContext, showing: TemplateRenderer, *, actor: Actor, door: LoopbackDoor
    ) -> None:
        self._context = context
        self._actor = actor
        self._door = door
        self._showing = showing
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def node(self, request: Request) -> Response:
        """Show the consequences of an action for a node; for a POST, do it and show the result."""
        action = Action.parse(request.path_params["action"])
        name = NodeName.parse(request.path_params["node"])
        row = self._context.fleet.row(name)
        if row is None:
            raise NotThereError(f"no node has the name {name}", hint="see the list of nodes")

        def read(form: Mapping[str, str]) -> tuple[str, Callable[[], Awaitable[str]]]:
            deed = NodeAction.read(action, name, form)
            return str(deed), lambda: self._actor.act(deed)

        return await self.answer(
            request,
            ActionProposal(
                label=action.label,
                subject=name,
                back=f"/nodes/{name}",
                will=consequences(action, row),
                read=read,
                holds=action is Action.HOLD,
            ),
        )

    async def answer(self, request: Request, proposal: ActionProposal) -> Response:
        """Show a proposal; for a POST with its token, do it and show the result."""
        if request.method != "POST":
            return self._confirm(request, proposal)
        form = await _form(request, patience=self._context.form_patience)
        subject = self._subject(request, form.get("about", ""))
        if not self._door.tokens.take(form.get("token", ""), subject):
            problem = "Nothing was done: the confirmation was used before, or has expired."
            return self._confirm(request, proposal, problem=problem, code=403)
        try:
            asked, act = proposal.read(form)
        except InvalidInputError as error:
            return self._confirm(request, proposal, problem=str(error), code=400)
        came, refused = "", UNKNOWN
        try:
            async with self._slots:
                came, refused = await act(), ""
        except LocalpuppetError as error:
            refused = str(error)
        finally:
            line = f"{self._actor.name}: {proposal.subject}: {asked}: {refused or came}"
            self._context.log.info(line, kind=LineKind.REQUEST)
        code, here = 409 if refused else 200, request.url.path
        return self._showing.page(
            "acted.html", code=code, proposal=proposal, here=here, came=came, refused=refused
        )

    def _confirm(
        self, request: Request, proposal: ActionProposal, *, problem: str = "", code: int = 200
    ) -> Response:
        return self._showing.page(
            "act.html",
            code=code,
            proposal=proposal,
            here=request.url.path,
            me=self._actor.name,
            token=self._door.tokens.give(self._subject(request, proposal.about)),
            problem=problem,
        )

    def _subject(self, request: Request, about: str) -> str:
        session = self._door.session(request.headers.get("cookie", ""))
        return f"{session} {request.url.path} {about}"


async def _form(request: Request, *, patience: float) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        InvalidInputError: The body is not a form, is too large, or does not arrive in time.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != FORM:
        raise InvalidInputError("is not a form", where="request")
    body = b""
    try:
        async with asyncio.timeout(patience):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_FORM:
                    raise InvalidInputError("is too large", where="form")
    except (TimeoutError, ClientDisconnect) as error:
        raise InvalidInputError("did not arrive completely", where="form") from error
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError as error:
        raise InvalidInputError("is not a form", where="request") from error
