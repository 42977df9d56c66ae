"""The request for a list in a URL: filters, order and page; and the URLs of neighbours.

A URL is either understood completely or rejected.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.machine.sqlite import Connection
from localpuppet.base.value import Value
from localpuppet.fleet.history.history_records import AuditDecision
from localpuppet.fleet.inventory import presence
from localpuppet.fleet.inventory.run_end import FAILURE_CAUSE_DIGITS, PARTS, Kind
from localpuppet.fleet.trust.policy import REQUESTS
from localpuppet.web.access.http_limits import MAX_LIST_WORDS, MAX_PAGE
from localpuppet.web.dashboard.actions import SENT, RolloutAction

# What a node can be listed for, beside how its last run ended.
CONCERNS = (*presence.STATES, presence.LATE, presence.ROLLED_BACK, presence.WRONG_RELEASE)
T = TypeVar("T")
PAGE = 100
_FAILURE_CAUSE = re.compile(rf"[0-9a-f]{{{FAILURE_CAUSE_DIGITS}}}\Z")


def _time(text: str) -> float:
    """Return a time in a URL, or in a field of a form, which has no zone: UTC."""
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC).replace(second=0, microsecond=0).timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidInputError("is not a time such as 2026-11-22T14:00Z") from error


def _failure_cause(text: str) -> str:
    if not _FAILURE_CAUSE.match(text):
        raise InvalidInputError("is not the id of a failure cause")
    return text


class Filter(Value):
    """A parameter that filters a list."""

    label: str = ""  # what its field in a form says while it is empty
    choices: tuple[str, ...] = ()  # the allowed values; empty for any text
    field: str = ""  # the field of `ListQuery`, if that has another name
    read: Callable[[str], Any] = str

    def parse(self, key: str, word: str) -> Any:  # noqa: ANN401 - of the field
        if self.choices:
            _one(self.choices, key, word)
        with errors_at(key):
            return self.read(word)


WITHOUT_ROLLOUTS = "without rollouts"
# All filters, in the order of a URL.
FILTERS: Mapping[str, Filter] = {
    "q": Filter(label="nodes that match, such as role=web and os.family=Debian"),
    "name": Filter(label="a part of a name", read=str.lower),
    "outcome": Filter(label="any result", choices=tuple(Kind), read=Kind),
    "is": Filter(label="in any state", choices=CONCERNS, field="is_"),
    "failure_cause": Filter(read=_failure_cause),
    "release": Filter(),
    "older": Filter(label="older than r43"),
    "node": Filter(label="a node", read=str.lower),
    "result": Filter(label="any result", choices=PARTS),
    "from": Filter(label="from 2026-11-22T14:00Z", field="since", read=_time),
    "to": Filter(label="to 2026-11-22T15:00Z", field="until", read=_time),
    "range": Filter(field="range_"),
    "caller": Filter(label="a caller"),
    "action": Filter(label="any action", choices=(*REQUESTS, "trigger", SENT, *RolloutAction)),
    "decision": Filter(label="any decision", choices=tuple(AuditDecision)),
    "rollouts": Filter(label="with rollouts", choices=(WITHOUT_ROLLOUTS,)),
    "by": Filter(field="by_"),
}


class Form(Value):
    """The parameters of a list."""

    path: str
    orders: tuple[str, ...] = ()
    usual: str = ""  # the default order; with `-` before it, descending
    fields: tuple[str, ...] = ()  # filters that its page has a field for
    others: tuple[str, ...] = ()  # further filters, which links set
    # Whether the list is history: it is read from the disk, and an open page keeps it.
    is_past: bool = False
    most: int = 0  # rows of all pages at most, the newest

    @property
    def filters(self) -> frozenset[str]:
        """Return the parameters besides `sort` and `page`."""
        return frozenset((*self.fields, *self.others))


NODES = Form(
    path="/nodes",
    orders=tuple(presence.NODE_ORDERS),
    usual="severity",
    fields=("q", "outcome", "is", "older"),
    others=("name", "failure_cause", "release"),
)
OVERVIEW = Form(path="/", fields=("q",), others=("range",))
PLAN = Form(path="/plan", fields=("q",))
KICKS = Form(path="/kicks")
MAP = Form(path="/map", others=("by",))
FAILURES = Form(
    path="/failures",
    orders=("nodes", "error", "place", "first", "last"),
    usual="-nodes",
    fields=("q", "outcome"),
    others=("name", "release"),
)
RELEASES = Form(
    path="/releases",
    orders=("release", "tagged", "nodes", "bad", "last"),
    usual="-tagged",
    fields=("q", "name"),
)
ROLLOUTS = Form(
    path="/rollouts",
    orders=("started_at", "state", "title", "release", "caller", "nodes"),
    usual="-started_at",
    fields=("name",),
)
RUNS = Form(
    path="/runs",
    orders=("at", "node", "outcome"),
    usual="-at",
    fields=("q", "node", "result", "from", "to"),
    others=("name",),
    is_past=True,
    most=5_000,
)
AUDIT = Form(
    path="/audit",
    orders=("at",),
    usual="-at",
    fields=("name", "caller", "node", "action", "decision", "rollouts"),
    others=("from", "to"),
    is_past=True,
    most=10_000,
)
DRIFT = Form(
    path="/drift",
    orders=("count", "last", "node", "resource"),
    usual="-count",
    fields=("q", "name"),
    is_past=True,
)
LISTS = tuple(form.path for form in (NODES, FAILURES, RELEASES, ROLLOUTS, RUNS, AUDIT, DRIFT))


def read_parameters(
    parameters: Mapping[str, str], known: AbstractSet[str]
) -> tuple[dict[str, str], int]:
    """Return the parameters of a URL that are known and not empty, and the page number, from 1."""
    given = {key: value.strip() for key, value in parameters.items() if value.strip()}
    page = given.pop("page", "1")
    if unknown := sorted(given.keys() - known):
        raise InvalidInputError("is not a parameter of this view", where=unknown[0][:40])
    if max(map(len, given.values()), default=0) > MAX_LIST_WORDS:
        raise InvalidInputError(f"has more than {MAX_LIST_WORDS} characters", where="URL")
    if not (page.isascii() and page.isdigit() and 1 <= int(page) <= MAX_PAGE):
        raise InvalidInputError("must be the number of a page", where="page")
    return given, int(page)


class ListPage(Value, Generic[T]):
    """The rows of a page, at most `PAGE`; all of them for a file."""

    rows: Sequence[T]
    total: int
    page: int = 1

    @classmethod
    def of(cls, rows: Sequence[T], page: int | None) -> "ListPage[T]":
        """Return a page of all rows, or all of them; beyond the last page there are none."""
        begin = 0 if page is None else (page - 1) * PAGE
        shown = rows if page is None else rows[begin : begin + PAGE]
        return cls(rows=shown, total=len(rows), page=page or 1)

    @classmethod
    def read(
        cls,
        connection: Connection,
        select: str,
        values: Mapping[str, Any],
        asked: "ListQuery",
        make: Callable[..., T],
    ) -> "ListPage[T]":
        """Return a page of an ordered SELECT whose last column is the number of all rows."""
        found = connection.execute(select + asked.limit, values).fetchall()
        count = f"SELECT count(*) FROM ({select})"  # noqa: S608
        total = found[0][-1] if found else connection.execute(count, values).fetchone()[0]
        return cls(rows=[make(*row[:-1]) for row in found], total=total, page=asked.page or 1)

    @property
    def first(self) -> int:
        """Return the number of the first row, from 1; 0 without one."""
        return (self.page - 1) * PAGE + 1 if self.rows else 0

    @property
    def pages(self) -> int:
        """Return the number of pages, at least 1."""
        return max(1, -(-self.total // PAGE))


class ListQuery(Value):
    """A request for rows in an order."""

    form: Form = NODES
    q: str = ""  # an expression of `localpuppet query`
    name: str = ""
    outcome: Kind | None = None  # the result of the last run
    is_: str = ""  # one of `CONCERNS`
    failure_cause: str = ""
    release: str = ""
    older: str = ""  # a tag or release: nodes with an older release
    node: str = ""
    result: str = ""  # one of `PARTS`
    # Only runs that ended at this time or later, and before that time.
    since: float | None = None
    until: float | None = None
    range_: str = ""  # the range of a chart; empty for the usual one
    caller: str = ""
    action: str = ""
    decision: str = ""
    rollouts: str = ""  # `WITHOUT_ROLLOUTS`, or empty for requests of rollouts, too
    by_: str = ""  # the fact by which a map groups nodes; empty for roles
    sort: str = ""  # the order; with `-` before it, descending; empty for the usual one
    page: int | None = 1

    @classmethod
    def parse(cls, parameters: Mapping[str, str], form: Form = NODES) -> "ListQuery":
        """Return the request in the parameters of a URL that are not empty."""
        values, page = read_parameters(parameters, form.filters | {"sort"})
        filters: dict[str, Any] = {
            FILTERS[key].field or key: FILTERS[key].parse(key, word)
            for key, word in values.items()
            if key in form.filters
        }
        order = values.get("sort", "")
        if order:
            _one(form.orders, "sort", order.removeprefix("-"))
        return cls(form=form, **filters, sort=order if order != form.usual else "", page=page)

    def with_(self, **changes: Any) -> "ListQuery":  # noqa: ANN401 - fields of the class
        """Return this request with other fields, on the first page by default."""
        return replace(self, **{"page": 1, **changes})

    @property
    def order(self) -> str:
        """Return the order without its direction."""
        return (self.sort or self.form.usual).removeprefix("-")

    @property
    def down(self) -> bool:
        """Return whether the order is descending."""
        return (self.sort or self.form.usual).startswith("-")

    def by(self, order: str) -> "ListQuery":
        """Return this request in another order; reversed if it has that order already."""
        word = f"-{order}" if self.order == order and not self.down else order
        return self.with_(sort="" if word == self.form.usual else word)

    @property
    def whole(self) -> "ListQuery":
        """Return this request without pages, for a file."""
        return replace(self, page=None)

    @property
    def limit(self) -> str:
        """Return the page as a part of a SELECT."""
        return "" if self.page is None else f" LIMIT {PAGE} OFFSET {(self.page - 1) * PAGE}"

    @property
    def url(self) -> str:
        """Return the URL, without defaults."""
        return self._at(self.form.path)

    def file(self, form: str) -> str:
        """Return the URL of the whole list as a file: `csv`, `json`, `txt`."""
        return self.with_()._at(f"{self.form.path}.{form}")

    def failures(self) -> str:
        """Return the URL of the failures of the requested nodes."""
        return ListQuery.parse({"q": self.q}, FAILURES).url

    def nodes(self, **changes: Any) -> str:  # noqa: ANN401 - fields of the class
        """Return the URL of the requested nodes; see `with_`."""
        words = {"q": self.q, "name": self.name, "outcome": self.outcome}
        return ListQuery(**{**words, **changes}).url

    def _at(self, path: str) -> str:
        words = self.filters
        if self.sort:
            words["sort"] = self.sort
        if self.page != 1:
            words["page"] = str(self.page)
        return f"{path}?{urlencode(words)}" if words else path

    @property
    def filters(self) -> dict[str, str]:
        """Return the filters in force; empty for the whole list."""
        values = ((key, getattr(self, one.field or key)) for key, one in FILTERS.items())
        return {key: _shown(value) for key, value in values if value not in ("", None)}


def runs(**filters: Any) -> ListQuery:  # noqa: ANN401 - fields of the class
    """Return the request for runs, the newest first."""
    return ListQuery(form=RUNS, **filters)


def _shown(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%dT%H:%MZ}"


def _one(allowed: Iterable[str], where: str, word: str) -> str:
    if word not in allowed:
        raise InvalidInputError(f"is not one of {', '.join(allowed)}", where=where)
    return word
