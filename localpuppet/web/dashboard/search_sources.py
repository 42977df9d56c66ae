"""What the search finds besides names: resources in runs, errors, holds, facts and exports.

- A text matches a part of a value, in any case; it is a value of a SELECT and never its text.
- Together the questions of one database take at most `SECONDS`. What they have not found until then
  is missing, and the page says so; the newest days are searched first.
- Every function takes a connection in a transaction, or a reader of the inventory.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.machine.sqlite import Connection, sqlite3
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.fleet.inventory.tables import FACTS
from localpuppet.web.dashboard import run_queries
from localpuppet.web.dashboard.inventory_questions import leaves_of
from localpuppet.web.dashboard.list_query import ListQuery
from localpuppet.web.dashboard.nodes import of_text
from localpuppet.web.dashboard.run_table import run_of

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
# A name, a remark and the URL.
Match = tuple[str, str, str]


@dataclass(slots=True, eq=False)
class TextSearch:
    """The search for a text.

    Attributes:
        text: In lower case.
        matches: The matches by kind.
        is_cut: Whether the time was over before everything was searched.
    """

    text: str
    matches: dict[str, list[Match]] = field(default_factory=dict)
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
            found: dict[tuple[str, str], list[str]] = {}
            for node, name, value in self._execute(connection, _FACTS):
                for path, text in leaves_of({name: loads_again(value.encode())}):
                    if self.text in text.lower():
                        found.setdefault((path, text), []).append(node)
            for (path, text), nodes in sorted(found.items()):
                url = f"/nodes/{quote(nodes[0], safe='')}?fact={quote(text, safe='')}#facts"
                if len(nodes) > 1 and '"' not in text:
                    url = ListQuery(q=f'{path}="{text}"').url
                self._add("fact", f"{path} = {text}", _named(nodes), url)
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
            matches.append((name, remark, url))

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


def _node(name: str) -> str:
    return f"/nodes/{quote(name, safe='')}"


def _time(run: RunId) -> str:
    return f"{run.time:%-d %b %H:%M} UTC"


def _named(nodes: list[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
