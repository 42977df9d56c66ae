"""What all views share: the data and services of the wiring, and the templates.

Templates escape, and have times and ages in one format. A time is `14:05:09 UTC` if it is today,
else `yesterday 23:35:00 UTC`, `tomorrow 09:00:00 UTC` or `2026-11-19 14:05:09 UTC`. An age is
`12 s ago`, `3 minutes ago` or `in 2 days`. The script `page.js` has the same rules, for the
reader's zone and while a page is open.

Every text that a view gets is shown as one printable, escaped line of at most `LONGEST` characters:
no value can create an element, reverse the text around it, or fill the page.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from localpuppet import __version__
from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.text import shortened
from localpuppet.base.formats.times import show_duration
from localpuppet.base.machine.ports import Clock, Log
from localpuppet.base.value import Value
from localpuppet.rollout.diagram import Diagram
from localpuppet.rollout.rollout_view import tone_of
from localpuppet.web.access.rules import AccessRule, LoopbackDoor, Visitor
from localpuppet.web.dashboard.actions import Action
from localpuppet.web.dashboard.audit_table import LABELS
from localpuppet.web.dashboard.fleet import Fleet
from localpuppet.web.dashboard.inventory_questions import Inventory, Reports
from localpuppet.web.dashboard.list_query import FILTERS
from localpuppet.web.dashboard.live import Live
from localpuppet.web.dashboard.memory import DashboardStore
from localpuppet.web.dashboard.releases import StagedReleases
from localpuppet.web.dashboard.rollout_previews import RolloutPreviews
from localpuppet.web.dashboard.rollouts import Rollouts
from localpuppet.web.dashboard.signing_actor import SigningActor

# Seconds that a node's view waits for its links: the first visitor may see the view without them.
PATIENCE = 0.5
# Seconds within which a form must arrive.
FORM_PATIENCE = 10.0
# Seconds that a user waits for a rollout to begin, before a page says that it has not.
BEGIN_PATIENCE = 20.0


# Returns a diagram as SVG with links to the pages of nodes, as `rollout.svg.draw_svg` does.
Draw = Callable[[Diagram, str], str]


class ViewContext(Value):
    """The data and services of the views."""

    fleet: Fleet
    memory: DashboardStore
    inventory: Inventory
    staged: StagedReleases
    rollouts: Rollouts
    reports: Reports
    live: Live
    door: AccessRule
    clock: Clock
    log: Log
    draw: Draw
    reads_code: Callable[[Visitor], bool]
    # The same access rule, if it has a login link, with tokens for actions; `None` over TLS, which
    # has no actions.
    entrance: LoopbackDoor | None = None
    actor: SigningActor | None = None
    previews: RolloutPreviews | None = None
    # For a node's links, a form, the begin of a rollout.
    patience: float | None = PATIENCE
    form_patience: float = FORM_PATIENCE
    begin_patience: float = BEGIN_PATIENCE


HERE = Path(__file__).parent
DAYS = {-1: "yesterday ", 0: "", 1: "tomorrow "}
AGES = (("day", 86400), ("hour", 3600), ("minute", 60))
LONGEST = 8192
MOST_UNSEEN = 4


class NotThereError(LocalpuppetError):
    """No page exists at this address."""


class TemplateRenderer:
    """Renders templates; `me` is the caller in whose name requests are sent."""

    def __init__(
        self,
        fleet: Fleet,
        clock: Clock,
        me: str = "",
        web_url: Callable[..., str] = lambda *_, **__: "",
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        # Failures that no one has seen yet, shown in each view: page with more → text.
        self.unseen = BoundedDict[str, str](MOST_UNSEEN)
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            finalize=_line,
        )
        self._templates.filters.update(when=self._when, ago=self._ago)
        self._templates.filters.update(duration=show_duration, path=_path, host=_host)
        self._templates.filters.update(tone=tone_of)
        self._templates.globals.update(version=__version__, acts_as=me, actions=tuple(Action))
        self._templates.globals.update(filters=FILTERS, audit_labels=LABELS)
        self._templates.globals.update(web_url=web_url)

    def page(self, template: str, *, code: int = 200, **values: Any) -> HTMLResponse:  # noqa: ANN401
        fleet = self._fleet
        bus = {
            "last_updated": fleet.last_updated,
            "away": fleet.away,
            "full": fleet.is_full,
            "unsaved": fleet.unsaved,
            "missing_days": fleet.missing_days,
            "unnamed": fleet.has_no_bus,
            "unseen": self.unseen,
            # A page with an error may be for a visitor without access.
            "failing": [
                (kind, name, why)
                for kind, reasons in fleet.failing.items()
                for name, why in reasons.items()
                if code == 200
            ],
        }
        now = self._clock.now().timestamp()
        text = self._templates.get_template(template).render(bus=bus, now=now, code=code, **values)
        return HTMLResponse(text, status_code=code)

    def problem(self, code: int, what: str, hint: str, *, where: str = "") -> HTMLResponse:
        """Return a page with an error, its place and its cure."""
        return self.page("problem.html", code=code, what=what, hint=hint, where=where)

    def _when(self, seconds: float | None) -> Markup:
        """Return a time as an element in UTC; the script may convert it to the reader's zone."""
        if seconds is None:
            return Markup("<span>never</span>")
        moment = _moment(seconds)
        if moment is None:
            return Markup("<span>at an invalid time</span>")
        return _time(moment, show_moment(moment, self._clock.now()))

    def _ago(self, seconds: float | None) -> Markup:
        """Return an age as an element; the script keeps it current."""
        moment = None if seconds is None else _moment(seconds)
        if moment is None:
            return Markup("")
        return _time(moment, show_age(moment, self._clock.now()), kind="age")


def show_moment(moment: datetime, now: datetime) -> str:
    """Return a time, with its day unless it is today, in UTC."""
    day = DAYS.get((moment.date() - now.date()).days, f"{moment:%Y-%m-%d} ")
    return f"{day}{moment:%H:%M:%S} UTC"


def show_age(moment: datetime, now: datetime) -> str:
    """Return an age, or the time until a moment, in its largest whole unit."""
    age = int((now - moment).total_seconds())
    size = abs(age)
    unit, length = next(((unit, length) for unit, length in AGES if size >= length), ("s", 1))
    count = size // length
    shown = f"{count} {unit}{'s' if length > 1 and count != 1 else ''}"
    return f"in {shown}" if age < 0 else f"{shown} ago"


def _moment(seconds: float) -> datetime | None:
    """Return a time in whole seconds; `None` if no such date exists: a node may send any number."""
    try:
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=0)
    except (ValueError, OverflowError, OSError):
        return None


def _time(moment: datetime, shown: str, *, kind: str = "when") -> Markup:
    day, clock = moment.date().isoformat(), moment.time().isoformat()
    # All parts are safe; `Markup.format` takes a third of the time of a list.
    return Markup(  # noqa: S704
        f'<time class="{kind}" datetime="{day}T{clock}Z" title="{day} {clock} UTC">{shown}</time>'
    )


def _line(value: object) -> object:
    """Return a value made safe for a page; markup of templates is safe already."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return shortened(value, LONGEST)


def _path(text: str) -> Markup:
    """Return a path with possible line breaks after its slashes."""
    return _breakable(text, "/")


def _host(name: str) -> Markup:
    """Return a host name with possible line breaks after its dots."""
    return _breakable(name, ".")


def _breakable(text: str, mark: str) -> Markup:
    return Markup(str(escape(_line(text))).replace(mark, f"{mark}<wbr>"))  # noqa: S704
