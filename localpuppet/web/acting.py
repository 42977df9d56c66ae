"""The views that have nodes do something: first what will happen, then what came of it.

Owns: that a deed was confirmed on a page of ours, once, and that it is in the log. Refuses to know:
how nodes are asked.

Invariants:

- Nothing is done for a GET, and nothing without a token that a confirmation of the same session,
  for the same deed, has given: each is good once, for ten minutes.
- Each deed is a line of the log with who, what, where and what came of it, refused ones too.
"""

import asyncio
from typing import Protocol
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from localpuppet.errors import InvalidInputError, LocalpuppetError
from localpuppet.formats.names import NodeName
from localpuppet.machine.ports import LineKind, Log
from localpuppet.web.deeds import Action, Deed, consequences
from localpuppet.web.doors import Doors
from localpuppet.web.fleet import Fleet
from localpuppet.web.problems import NotThereError
from localpuppet.web.row import Row
from localpuppet.web.showing import Showing

# Bytes of a form, and fields in it.
MAX_FORM = 8 * 1024
MAX_FIELDS = 8
# Deeds that go on together.
AT_ONCE = 4
FORM = "application/x-www-form-urlencoded"


class Actor(Protocol):
    """Has nodes do something, signed with a key."""

    @property
    def name(self) -> str:
        """Return in whose name."""
        ...

    async def act(self, deed: Deed) -> str:
        """Have a node do something; return what came of it, one line.

        Raises:
            LocalpuppetError: The node refuses or is silent, or the bus is away.
        """
        ...


class Acting:
    """The views.

    Args:
        actor: Has nodes do something.
        fleet: Which nodes there are.
        doors: Who may, and gives tokens.
        showing: Shows templates.
        log: Gets a line for each deed.
    """

    def __init__(
        self, actor: Actor, fleet: Fleet, doors: Doors, *, showing: Showing, log: Log
    ) -> None:
        self._actor = actor
        self._fleet = fleet
        self._doors = doors
        self._showing = showing
        self._log = log
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def view(self, request: Request) -> Response:
        """Show what will happen; for a POST, have it happen and show what came of it."""
        action = Action.parse(request.path_params["action"])
        name = NodeName.parse(request.path_params["node"])
        row = self._fleet.row(name)
        if row is None:
            raise NotThereError(f"nothing is known of {name}", hint="nodes lists those that are")
        if request.method == "POST":
            return await self._done(request, action, row)
        return self._confirm(request, action, row)

    def _confirm(
        self, request: Request, action: Action, row: Row, *, problem: str = "", code: int = 200
    ) -> Response:
        return self._showing.page(
            "act.html",
            code=code,
            action=action,
            row=row,
            me=self._actor.name,
            will=consequences(action, row),
            token=self._doors.tokens.give(self._subject(request)),
            problem=problem,
        )

    async def _done(self, request: Request, action: Action, row: Row) -> Response:
        form = await _form(request)
        if not self._doors.tokens.take(form.get("token", ""), self._subject(request)):
            problem = "Nothing was done: this was confirmed before, or too long ago."
            return self._confirm(request, action, row, problem=problem, code=403)
        try:
            deed = Deed.read(action, NodeName(row.node), form)
        except InvalidInputError as error:
            return self._confirm(request, action, row, problem=str(error), code=400)
        came, refused = "", ""
        try:
            async with self._slots:
                came = await self._actor.act(deed)
        except LocalpuppetError as error:
            refused = str(error)
        done = refused or came
        self._log.info(f"{self._actor.name}: {row.node}: {deed}: {done}", kind=LineKind.REQUEST)
        code = 409 if refused else 200
        return self._showing.page(
            "acted.html", code=code, action=action, row=row, came=came, refused=refused
        )

    def _subject(self, request: Request) -> str:
        return f"{request.cookies.get(self._doors.cookie, '')} {request.url.path}"


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        InvalidInputError: It is not one, or a large one.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != FORM:
        raise InvalidInputError("is not a form", where="request")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM:
            raise InvalidInputError("is too large", where="form")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError as error:
        raise InvalidInputError("is not a form", where="request") from error
