"""The views that have nodes do something: first what will happen, then what came of it.

Owns: that a deed was confirmed on a page of ours, once, and that it is in the log. Refuses to know:
how nodes are asked.

Invariants:

- Nothing is done for a GET, and nothing without a token that a confirmation of the same session,
  for the same deed, has given: each is good once, for ten minutes.
- Who confirms that a rollout continues ends the pause that the confirmation showed, and no later
  one.
- Each deed is a line of the log with who, what, where and what came of it, refused ones too,
  and those that the end of the page cuts off.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.rollout.execution.report import ELSEWHERE, Report
from localpuppet.rollout.execution.words.word import Word, identify_pause
from localpuppet.web.dashboard.deeds import (
    Action,
    Course,
    Deed,
    consequences,
    rollout_consequences,
)
from localpuppet.web.dashboard.fleet import Fleet
from localpuppet.web.dashboard.problems import NotThereError
from localpuppet.web.dashboard.rollouts import Rollouts
from localpuppet.web.dashboard.showing import Showing
from localpuppet.web.doors.loopback import LoopbackDoor

# Bytes of a form, and fields in it.
MAX_FORM = 8 * 1024
MAX_FIELDS = 8
# Seconds in which a form is there.
PATIENCE = 10.0
# Deeds that go on together.
AT_ONCE = 4
# Of a deed that the end of the page, or an error of ours, has cut off.
UNKNOWN = "what came of it is not known"
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

    async def say(self, rollout: RolloutId, word: Word, about: str) -> str:
        """Send a command to the process that carries a rollout out; return what came of it.

        Args:
            rollout: Which.
            word: The command.
            about: What it is about, see `Said`.

        Raises:
            LocalpuppetError: There is no such process, or it does not wait for that word.
        """
        ...

    async def resume(self, rollout: RolloutId) -> str:
        """Have a process of its own go on with a rollout; return what came of it.

        Raises:
            LocalpuppetError: A process does already, or it is over, or another's, or could not
                begin.
        """
        ...


# Reads a form: what it asks for, for the log, and what does it.
_Read = Callable[[Mapping[str, str]], tuple[str, Callable[[], Awaitable[str]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proposal:
    label: str
    subject: str  # a node, a rollout
    back: str
    will: tuple[str, ...]
    read: _Read
    holds: bool = False
    about: str = ""  # what is confirmed is about this, and about nothing that comes later


class Acting:
    """The views.

    Args:
        actor: Has nodes do something.
        fleet: Which nodes there are.
        rollouts: Those of this machine.
        door: Knows sessions, and gives tokens.
        showing: Shows templates.
        log: Gets a line for each deed.
    """

    def __init__(
        self,
        actor: Actor,
        fleet: Fleet,
        rollouts: Rollouts,
        door: LoopbackDoor,
        *,
        showing: Showing,
        log: Log,
    ) -> None:
        self._actor = actor
        self._fleet = fleet
        self._rollouts = rollouts
        self._door = door
        self._showing = showing
        self._log = log
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def node(self, request: Request) -> Response:
        """Show what a node would do; for a POST, have it do that and show what came of it."""
        action = Action.parse(request.path_params["action"])
        name = NodeName.parse(request.path_params["node"])
        row = self._fleet.row(name)
        if row is None:
            raise NotThereError(
                f"nothing is known of {name}", hint="the list of nodes has those that are there"
            )

        def read(form: Mapping[str, str]) -> tuple[str, Callable[[], Awaitable[str]]]:
            deed = Deed.read(action, name, form)
            return str(deed), lambda: self._actor.act(deed)

        return await self._answer(
            request,
            _Proposal(
                label=action.label,
                subject=name,
                back=f"/nodes/{name}",
                will=consequences(action, row),
                read=read,
                holds=action is Action.HOLD,
            ),
        )

    async def rollout(self, request: Request) -> Response:
        """Show what a rollout would do; for a POST, have it do that."""
        course = Course.parse(request.path_params["action"])
        rollout = RolloutId.parse(request.path_params["rollout"])
        try:
            report = await asyncio.to_thread(self._rollouts.report, rollout)
        except InvalidInputError as error:
            raise NotThereError(error.what) from error
        return await self._answer(
            request,
            _Proposal(
                label=course.label,
                subject=f"rollout {rollout}",
                back=f"/rollouts/{rollout}",
                will=rollout_consequences(course, report),
                read=lambda form: (
                    str(course),
                    lambda: self._course(report, course, form.get("about", "")),
                ),
                about=identify_pause(report.state) if course is Course.CONTINUE else "",
            ),
        )

    async def _course(self, report: Report, course: Course, about: str) -> str:
        rollout = report.state.began.id
        if report.word == ELSEWHERE:
            raise InvalidInputError("went on on another machine", where=str(rollout))
        if course is Course.RESUME:
            return await self._actor.resume(rollout)
        return await self._actor.say(rollout, Word(course), about)

    async def _answer(self, request: Request, proposal: _Proposal) -> Response:
        if request.method != "POST":
            return self._confirm(request, proposal)
        form = await _form(request)
        subject = self._subject(request, form.get("about", ""))
        if not self._door.tokens.take(form.get("token", ""), subject):
            problem = "Nothing was done: this was confirmed before, or too long ago."
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
            self._log.info(line, kind=LineKind.REQUEST)
        code, here = 409 if refused else 200, request.url.path
        return self._showing.page(
            "acted.html", code=code, proposal=proposal, here=here, came=came, refused=refused
        )

    def _confirm(
        self, request: Request, proposal: _Proposal, *, problem: str = "", code: int = 200
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


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        InvalidInputError: It is not one, or a large one, or does not come in time.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != FORM:
        raise InvalidInputError("is not a form", where="request")
    body = b""
    try:
        async with asyncio.timeout(PATIENCE):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_FORM:
                    raise InvalidInputError("is too large", where="form")
    except (TimeoutError, ClientDisconnect) as error:
        raise InvalidInputError("did not come whole", where="form") from error
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError as error:
        raise InvalidInputError("is not a form", where="request") from error
