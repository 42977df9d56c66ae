"""Finds what a few characters may mean, as a page and as suggestions while the user types.

- A text matches a part of a name or an id, in any case.
- `KIND:TEXT` searches only that kind: `class:nginx`, `role:web`.
- Unless a name matches as a whole, `TextSearch` finds resources in runs, errors, holds, facts and
  exports. Of a text with a resource, as in `who changed File[/etc/motd]`, only that counts.
- The text is a value of a SELECT and never its text. Together the questions of one database take at
  most `SECONDS`. What they have not found until then is missing, and the page says so; the newest
  days are searched first.
- Two names of nodes lead to their comparison.
- A text with an operator, such as `os.family=Debian`, is also an expression of the query language.
- One exact match of a name or an id counts as the only one; so does one exact match in a kind. The
  host name of a node and the tag of a release are names, too.

Example: `find("r43", names).target` is the URL of the only release with that tag, or empty.
"""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.strict_json import compact, loads_again
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import Connection, sqlite3
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.entry import text_of
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.fleet.inventory.tables import FACTS
from localpuppet.node.enc.instance_facts import is_legacy_fact
from localpuppet.web.access.http_limits import MAX_LIST_WORDS, MAX_SEARCH_TEXT
from localpuppet.web.dashboard import run_queries
from localpuppet.web.dashboard.inventory_questions import MAX_LEAVES, MAX_WANTED, fact_query
from localpuppet.web.dashboard.list_query import ListQuery
from localpuppet.web.dashboard.nodes import of_text, searched
from localpuppet.web.dashboard.run_table import RunRow, run_of
from localpuppet.web.dashboard.view_context import TemplateRenderer, ViewContext

SECONDS = 0.5
# Steps of SQLite between two looks at the clock; texts of one question, and rows of one kind.
_STEPS, MOST_TEXTS, MOST_ROWS = 4096, 500, 50
# Shorter texts are in nearly every fact.
FEWEST = 3
# Each by itself: SQLite looks at the index for one, and at every run for both.
_DAYS = "SELECT (SELECT min(day) FROM runs), (SELECT max(day) FROM runs)"
_TEXTS = (
    "SELECT id FROM texts WHERE instr(text, char(9)) > 0 = :of_resources"
    " AND instr(lower(text), :text) > 0 LIMIT :most"
)
_TOUCHED = """
SELECT node.text, resource.text, found.moment, result FROM (
    SELECT node, resource, max(moment) AS moment, result FROM resources WHERE day = :day
    AND resource IN (SELECT value FROM json_each(:ids)) GROUP BY node, resource LIMIT :most
) AS found JOIN texts AS node ON node.id = found.node
JOIN texts AS resource ON resource.id = found.resource ORDER BY found.moment DESC
"""
_FAILED = f"""{run_queries.FOUND.format("runs")}
WHERE runs.day = :day AND (runs.place IN (SELECT value FROM json_each(:ids))
    OR runs.reason IN (SELECT value FROM json_each(:ids))) ORDER BY runs.at DESC LIMIT :most
"""  # noqa: S608
# Names of nodes and roles are found as such.
_FACTS = f"""
SELECT certname, name, value FROM {FACTS}
WHERE name NOT IN ('fqdn', 'hostname', 'clientcert', 'role', 'trusted')
    AND instr(lower(value), :text) > 0 LIMIT :most
"""  # noqa: S608
_EXPORTS = (
    "SELECT node, type || '[' || title || ']' AS resource FROM held.resources"
    " WHERE instr(lower(resource), :text) > 0 ORDER BY resource, node LIMIT :most"
)


class Hit(Value):
    """A match; if it is exact, the text means no other of its kind."""

    name: str
    url: str
    about: str = ""
    exact: bool = False


@dataclass(slots=True, eq=False)
class TextSearch:
    """The search for a text in lower case; it is cut if the time was over before its end."""

    text: str
    matches: dict[str, list[Hit]] = field(default_factory=dict)
    is_cut: bool = False

    def in_memory(self, connection: Connection) -> None:
        """Search the nodes and the past of the dashboard's memory."""
        with self._limited(connection):
            self._failures(connection)
            self._holds(connection)
            for first, last in self._execute(connection, _DAYS):
                self._runs(connection, range(last, first - 1, -1) if first else ())

    def in_inventory(self, reader: InventoryReader) -> None:
        """Search the facts of nodes and, if this machine has them, exports."""
        with reader.rows() as connection, self._limited(connection):
            found: dict[tuple[tuple[str, ...], str], list[str]] = {}
            as_json = compact(self.text)[1:-1]  # as in the text of a fact
            for node, name, value in self._execute(connection, _FACTS, text=as_json):
                if not is_legacy_fact(name):
                    for path, fact in _parts_of(name, loads_again(value.encode())):
                        if self.text in text_of(fact).lower():
                            found.setdefault((path, compact(fact)), []).append(node)
            for (path, json_text), nodes in sorted(found.items()):
                fact = loads_again(json_text.encode())
                query = fact_query(path, fact) if len(nodes) > 1 else ""
                url = f"{_node(nodes[0])}?fact={quote(text_of(fact)[:MAX_WANTED], safe='')}#facts"
                if 0 < len(query) <= MAX_LIST_WORDS:
                    url = ListQuery(q=query).url
                self._add("fact", f"{'.'.join(path)} = {text_of(fact)}", _named(nodes), url)
        with (
            suppress(UnavailableError),
            reader.rows(exports=True) as connection,
            self._limited(connection),
        ):
            for node, resource in self._execute(connection, _EXPORTS):
                self._add("export", resource, f"exported by {node}", _node(node))

    def _failures(self, connection: Connection) -> None:
        for cause, failure, place, number in self._execute(
            connection,
            "SELECT failure_cause, failure, place, count(*) FROM nodes WHERE failure_cause != ''"
            " AND instr(lower(failure || ' ' || place || ' ' || resource), :text) > 0"
            " GROUP BY failure_cause ORDER BY 4 DESC LIMIT :most",
        ):
            remark = f"{number} {'node' if number == 1 else 'nodes'}, {place}".rstrip(", ")
            self._add("failure", failure, remark, ListQuery(failure_cause=cause).url)

    def _holds(self, connection: Connection) -> None:
        for (text,) in self._execute(
            connection,
            "SELECT row FROM nodes WHERE held AND instr(lower(row ->> '$.holds'), :text) > 0"
            " LIMIT :most",
        ):
            row = of_text(text)
            for hold in row.holds:
                if self.text in f"{hold.reason}\n{hold.owner}".lower():
                    self._add("hold", row.node, f"{hold.reason} ({hold.owner})", _node(row.node))

    def _runs(self, connection: Connection, days: Iterable[int]) -> None:
        ids = {
            of_resources: json.dumps(
                [row[0] for row in self._execute(connection, _TEXTS, of_resources=of_resources)]
            )
            for of_resources in (True, False)
        }
        known = set[tuple[str, str]]()
        for day in days:
            for node, text, moment, result in self._execute(
                connection, _TOUCHED, day=day, ids=ids[True]
            ):
                resource = run_queries.resource_of(text, result)
                if (node, resource.resource) not in known:
                    known.add((node, resource.resource))
                    run = run_of(day, moment)
                    remark = f"{resource.word} on {node}, {_time(run)}, {resource.place}"
                    url = f"{_node(node)}/runs/{run}"
                    self._add("resource", resource.resource, remark.rstrip(", "), url)
            for row in self._execute(connection, _FAILED, day=day, ids=ids[False]):
                ended = run_queries.result_of(row)
                remark = f"{ended.outcome} on {ended.node}, {_time(RunId(ended.run))}"
                self._add("error", ended.reason, remark, f"{_node(ended.node)}/runs/{ended.run}")

    def _add(self, kind: str, name: str, remark: str, url: str) -> None:
        matches = self.matches.setdefault(kind, [])
        if len(matches) < MOST_ROWS:
            matches.append(Hit(name=name, about=remark, url=url))

    def _execute(
        self,
        connection: Connection,
        select: str,
        **values: Any,  # noqa: ANN401 - SQLite's
    ) -> Iterator[tuple[Any, ...]]:
        """Yield rows until the time is over."""
        named: Mapping[str, Any] = {"text": self.text, "most": MOST_TEXTS, **values}
        try:
            yield from connection.execute(select, named)
        except sqlite3.OperationalError as error:
            if "interrupted" not in str(error):
                raise
            self.is_cut = True

    @contextmanager
    def _limited(self, connection: Connection) -> Iterator[None]:
        end = time.monotonic() + SECONDS
        connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
        try:
            yield
        finally:
            connection.set_progress_handler(None, 0)


def _parts_of(name: str, value: Json) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Yield the parts of a fact that are no hashes, with their paths; not recursive."""
    waiting: list[tuple[tuple[str, ...], Json]] = [((name,), value)]
    left = MAX_LEAVES
    while waiting and left:
        path, part = waiting.pop()
        if isinstance(part, dict) and part:
            waiting.extend(((*path, key), inner) for key, inner in part.items())
        else:
            left -= 1
            yield path, part


def _node(name: str) -> str:
    return f"/nodes/{quote(name, safe='')}"


def _time(run: RunId) -> str:
    return f"{run.time:%-d %b %H:%M} UTC"


def _named(nodes: list[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"


# Matches of a kind that are shown.
MOST_OF_KIND = 10
MOST_SUGGESTED = 12
# Names that are compared with a text that nothing matches, and the most similar ones.
MOST_COMPARED = 5000
MOST_NEAR = 3
_RESOURCE = re.compile(r"[A-Z][\w:]*\[[^\]]+\]")
_OPERATOR = re.compile(r"[=~<>\[]")
# Values that the query language reads without quotes.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_:-]*")
_RUN_START = re.compile(r"\d{8}(T[\d.]*(Z(-[0-9a-f]{0,4})?)?)?", re.IGNORECASE)
_FIRST_RUN, _LAST_RUN = "00000101T000000.000000Z-0000", "00000101T235959.999999Z-ffff"
# The tens of hours after which any digit may follow.
_EARLY = ("0", "1")

# Kind → name → a remark, or empty. The remark of a run is its node.
Names = Mapping[str, Mapping[str, str]]


class _Kind(Value):
    """How the matches of a kind are shown.

    `value` in the URL of a match is its name in the query language. If a kind is unique, a text
    that is a whole name means this match and no other.
    """

    title: str
    url: str
    list: str = ""
    unique: bool = True


_KINDS = {
    "node": _Kind(title="Nodes", url="/nodes/{name}", list="/nodes?name={}"),
    "run": _Kind(title="Runs", url="/nodes/{about}/runs/{name}"),
    "release": _Kind(title="Releases", url="/releases?name={name}", list="/releases?name={}"),
    "role": _Kind(title="Roles", url="/nodes?q=role%3D{value}", unique=False),
    "class": _Kind(title="Classes", url="/nodes?q=Class%5B{value}%5D", unique=False),
    "rollout": _Kind(title="Rollouts", url="/rollouts/{name}", list="/rollouts?name={}"),
    "caller": _Kind(title="Callers of rollouts", url="/rollouts?name={name}", unique=False),
    "result": _Kind(title="Results of last runs", url="/nodes?outcome={name}", unique=False),
    "state": _Kind(title="States of nodes", url="/nodes?is={name}", unique=False),
}
# Kinds of `TextSearch`, in the order of the page.
_SOURCES = {
    "resource": "Resources in runs",
    "failure": "Failures of last runs",
    "hold": "Holds",
    "fact": "Facts",
    "error": "Errors of runs",
    "export": "Exported resources",
}


class HitGroup(Value):
    """The first matches of a kind, at most `MOST_OF_KIND`, and the list of all."""

    kind: str
    title: str
    hits: tuple[Hit, ...]
    total: int
    url: str = ""


class Findings(Value):
    """The matches of a text, or similar names."""

    groups: tuple[HitGroup, ...]
    near: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether the text means one match, as a whole name."""
        return sum(hit.exact for group in self.groups for hit in group.hits) == 1

    @property
    def target(self) -> str:
        """The URL of the match that the text means; empty for none or several."""
        hits = [hit for group in self.groups for hit in group.hits]
        exact = [hit for hit in hits if hit.exact] or hits
        return exact[0].url if len(exact) == 1 else ""

    @property
    def suggestions(self) -> list[tuple[str, str]]:
        """Texts that find one match each, with its kind; a few of each kind first."""
        known = [group for group in self.groups if group.kind in _KINDS]
        ranked = [(place, group) for group in known for place in range(len(group.hits))]
        ranked.sort(key=lambda pair: pair[0])
        return [
            (_term(group.kind, group.hits[place].name), group.kind)
            for place, group in ranked[:MOST_SUGGESTED]
        ]


def find(text: str, names: Names) -> Findings:
    """Return the matches of a text that is not empty."""
    kind, _, rest = text.partition(":")
    alone = kind in _KINDS and rest.strip() != "" and not rest.startswith(":")
    if alone:
        text, names = rest.strip(), {kind: names.get(kind, {})}
    groups = [_group(kind, names[kind], text, alone=alone) for kind in _KINDS if kind in names]
    if not alone and _OPERATOR.search(text) and not _is_resource(text):
        query = Hit(name=text, url=f"/nodes?q={quote(text, safe='')}")
        groups.append(
            HitGroup(kind="query", title="Nodes by an expression", hits=(query,), total=1)
        )
    groups_with_hits = tuple(group for group in groups if group.total)
    return Findings(
        groups=groups_with_hits, near=() if groups_with_hits else _near(text.lower(), names)
    )


def _is_resource(text: str) -> bool:
    return bool(_RESOURCE.fullmatch(text)) and not text.startswith("Class[")


def run_bounds(text: str) -> tuple[RunId, RunId] | None:
    """Return the first and last possible id of runs that begin with a date or more, or `None`."""
    if not _RUN_START.fullmatch(text):
        return None
    begin, size = text[:23].upper() + text[23:].lower(), len(text)
    last = begin + _LAST_RUN[size:]
    if size == len("20261120T1") and begin[-1] in _EARLY:
        last = f"{begin}9{_LAST_RUN[size + 1 :]}"
    try:
        return RunId.parse(begin + _FIRST_RUN[size:]), RunId.parse(last)
    except InvalidInputError:
        return None


def _group(kind: str, names: Mapping[str, str], text: str, *, alone: bool) -> HitGroup:
    """Return the matches of one kind, exact ones first, then those that begin with the text."""
    how, wanted = _KINDS[kind], text.lower()
    matching = [name for name in names if name and wanted in name.lower()]
    exact = {name for name in matching if wanted in (name.lower(), _short(name.lower(), kind))}
    matching.sort(key=lambda name: (name not in exact, not name.lower().startswith(wanted), name))
    hits = tuple(
        Hit(
            name=name,
            url=_url(how.url, name, names[name]),
            about=names[name],
            exact=name in exact and (how.unique or alone),
        )
        for name in matching[:MOST_OF_KIND]
    )
    url = how.list.format(quote(text, safe=""))
    return HitGroup(kind=kind, title=how.title, hits=hits, total=len(matching), url=url)


def _url(form: str, name: str, about: str) -> str:
    # Without quotes inside, a value cannot end early.
    value = name if _PLAIN.fullmatch(name) else '"{}"'.format(re.sub(r'["\\]', "", name))
    parts = {"name": name, "about": about, "value": value}
    return form.format_map({key: quote(part, safe="") for key, part in parts.items()})


def _term(kind: str, name: str) -> str:
    return name if _KINDS[kind].unique else f"{kind}:{name}"


def _short(name: str, kind: str) -> str:
    """Return the host name of a node, the tag of a release, and any other name whole."""
    if kind == "node":
        return name.partition(".")[0]
    return name.rpartition("/")[2] if kind == "release" else name


def _near(text: str, names: Names) -> tuple[str, ...]:
    """Return the most similar names, short or whole; those with the text's first letter first."""
    known = {
        form: name
        for kind, names_of_kind in names.items()
        for name in names_of_kind
        for form in (name.lower(), _short(name.lower(), kind))
    }
    likely = sorted(known, key=lambda form: form[:1] != text[:1])[:MOST_COMPARED]
    close = get_close_matches(text, likely, n=MOST_NEAR)
    return tuple(dict.fromkeys(known[form] for form in close))


SCHEMA = 1


class FindViews:
    """The views of the search field."""

    def __init__(self, parts: ViewContext, showing: TemplateRenderer) -> None:
        self._parts = parts
        self._showing = showing

    async def page(self, request: Request) -> Response:
        """Redirect to what a text means, or show its matches by kind."""
        text = _text(request)
        if not text:
            return RedirectResponse("/nodes", 303)
        names, problem = await self._names(text)
        if resource := _RESOURCE.search(text):
            text = resource[0]
        findings = await asyncio.to_thread(find, text, names)
        pair = [find(f"node:{word}", names).target for word in text.split() if word != "vs"]
        if len(pair) == 2 and all(pair):
            both = (target.rpartition("/")[2] for target in pair)
            return RedirectResponse("/compare?a={}&b={}".format(*both), 303)
        search = TextSearch(text=text.lower())
        if not findings.is_exact and len(text) >= FEWEST:
            problem = await self._search(search) or problem
            groups = [*findings.groups, *_groups(search)]
            findings = replace(findings, groups=tuple(groups), near=() if groups else findings.near)
        if findings.target:
            return RedirectResponse(findings.target, 303)
        return self._showing.page(
            "find.html",
            text=text,
            found=findings,
            total=sum(group.total for group in findings.groups),
            most=MOST_OF_KIND,
            is_cut=search.is_cut,
            problem=problem,
        )

    async def _search(self, search: TextSearch) -> str:
        """Search for more than names; return why the inventory was not searched, or empty."""
        parts = self._parts
        await asyncio.to_thread(parts.memory.read, search.in_memory)
        try:
            await parts.inventory.search(search.in_inventory)
        except LocalpuppetError as error:
            return str(error)
        return ""

    async def suggestions(self, request: Request) -> Response:
        """Send terms that a text may begin, as JSON."""
        text, findings = _text(request), Findings(groups=())
        if text:
            names, _ = await self._names(text)
            findings = await asyncio.to_thread(find, text, names)
        listed = [{"term": term, "kind": kind} for term, kind in findings.suggestions]
        return JSONResponse({"schema": SCHEMA, "suggestions": listed})

    async def _names(self, text: str) -> tuple[Names, str]:
        """Return what is searched, and why classes are not."""
        parts, problem = self._parts, ""
        classes: Mapping[str, int] = {}
        try:
            classes = await parts.inventory.classes(patience=parts.patience)
        except LocalpuppetError as error:
            problem = str(error)
        runs: Sequence[RunRow] = ()
        if bounds := run_bounds(text.removeprefix("run:")):
            runs = await asyncio.to_thread(
                parts.memory.read, run_queries.between, bounds[0], bounds[1], limit=MOST_OF_KIND + 1
            )
        staged = await asyncio.to_thread(parts.staged.all)
        rollouts = await asyncio.to_thread(parts.rollouts.rows)
        nodes, ran, roles, states = await asyncio.to_thread(parts.memory.read, searched)
        return {
            "node": nodes,
            "run": {run.run: run.node for run in runs},
            "release": dict.fromkeys([*ran, *(str(release.release) for release in staged)], ""),
            "role": _counted(roles),
            "class": _counted(classes),
            "rollout": {row.id: row.state for row in rollouts},
            "caller": dict.fromkeys([row.caller for row in rollouts], ""),
            "result": _counted(Counter(nodes.values())),
            "state": _counted(states),
        }, problem


def _groups(search: TextSearch) -> list[HitGroup]:
    groups = []
    for kind, title in _SOURCES.items():
        if hits := tuple(search.matches.get(kind, ())):
            groups.append(HitGroup(kind=kind, title=title, hits=hits, total=len(hits)))
    return groups


def _counted(counts: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{count} {'node' if count == 1 else 'nodes'}" for name, count in counts.items()}


def _text(request: Request) -> str:
    return request.query_params.get("text", "").strip()[:MAX_SEARCH_TEXT]
