"""The table of audit records in the dashboard's memory, and the intents behind the records.

- An intent is what a caller did at once: all requests of a rollout, a command to it, or equal
  requests to nodes with less than `GAP` seconds between two of them, and what the dashboard
  recorded when it sent them.
- The commands to rollouts are not in the table: journals and checkpoints have them.
- The newest records of each node are kept, and of all nodes together, so a node that publishes
  ever new records displaces only its own.
- A record with a known identity replaces the earlier one.
- Every function takes a connection in a transaction.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from localpuppet.base.machine.sqlite import Connection
from localpuppet.base.value import Value
from localpuppet.fleet.history.history_records import AuditDecision, AuditRecord
from localpuppet.web.dashboard.actions import NEEDS, SENT, Action, RolloutAction
from localpuppet.web.dashboard.list_query import ListPage, ListQuery

# Seconds between two requests of an intent, and requests of it that a page has, the newest.
GAP, MOST_SHOWN = 60.0, 60
MOST_OF_ONE = 5_000
MOST = 300_000
TABLES = """
CREATE TABLE IF NOT EXISTS audit (
    node TEXT NOT NULL, at REAL NOT NULL, request TEXT NOT NULL, caller TEXT NOT NULL,
    action TEXT NOT NULL, subject TEXT NOT NULL, decision TEXT NOT NULL, reason TEXT NOT NULL,
    times INTEGER NOT NULL, PRIMARY KEY (node, at, request)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS audit_by_time ON audit (at);
CREATE INDEX IF NOT EXISTS audit_by_caller ON audit (caller, at);
"""

_COLUMNS = "node, at, request, caller, action, subject, decision, reason, times"
_CELLS = ", ".join(f"value ->> {number}" for number in range(len(_COLUMNS.split(", "))))
_Row = tuple[Any, ...]
Commands = Iterable[tuple[str, AuditRecord]]
_FIELDS = ("caller", "node", "action", "decision", "since", "until", "name")
_ROLLOUT = re.compile(r"rollout (\d{8}T\d{6}Z-[0-9a-f]{4})\b")
# The words of the buttons by the action of a policy; the others have no button.
LABELS = {
    **{NEEDS[action]: action.label for action in Action},
    **{str(action): action.label for action in RolloutAction},
    "capture": "Send the capture",
    "catalog": "Send the catalog",
    "compile": "Compile a catalog",
    "deploy": "Assign a release",
    "log": "Send a log",
    "report": "Send a report",
    "runonce": "Run once",
}
_COMMANDS = frozenset(RolloutAction)
# Subjects of requests that are part of a rollout: they begin with its id.
_OF_ROLLOUT = f"rollout {'[0-9]' * 8}T*"


class NodeAuditRecord(Value):
    """A request that a node decided."""

    node: str
    record: AuditRecord


class Intent(Value):
    """What a caller did."""

    at: float
    caller: str
    label: str
    subject: str
    rollout: str
    nodes: Sequence[str]
    decisions: Sequence[tuple[str, int]]
    records: Sequence[NodeAuditRecord]
    state: str = ""  # the state of its rollout, if this machine knows it
    course: Sequence[tuple[float, str]] = ()  # the decisions of its rollout: times and texts
    # For a command to a rollout, the machine of the caller, or empty; else `None`.
    machine: str | None = None

    @property
    def total(self) -> int:
        """Return the number of requests."""
        return sum(count for _, count in self.decisions)

    @classmethod
    def of(cls, rows: "Sequence[_Row]") -> "Intent":
        """Return the intent of rows of the table, the newest first."""
        records = [_record(*row) for row in rows[:MOST_SHOWN]]
        told = next((row for row in rows if row[4] != SENT), rows[0])
        caller, action, subject = told[3:6]
        action, rollout = _key(action, subject)
        label = LABELS.get(action, action)
        is_command = bool(action and rollout)
        if action == NEEDS[Action.NOOP] and subject.startswith("noop"):
            label, subject = Action.NOOP.label, subject.removeprefix("noop").lstrip(", ")
        return cls(
            at=rows[-1][1],
            caller=caller,
            label="Start a rollout" if rollout and not is_command else label,
            subject="" if rollout else subject,
            rollout=rollout,
            nodes=[] if is_command else sorted({row[0] for row in rows if row[4] != SENT}),
            decisions=sorted(Counter(row[6] for row in rows).items()),
            records=records,
            machine=told[0] if is_command else None,
        )


def write(connection: Connection, node: str, records: Iterable[AuditRecord]) -> None:
    connection.executemany(
        "INSERT OR REPLACE INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [_row(node, record) for record in records],
    )
    connection.execute(
        "DELETE FROM audit WHERE node = ?1 AND at <="
        " (SELECT at FROM audit WHERE node = ?1 ORDER BY at DESC LIMIT 1 OFFSET ?2)",
        (node, MOST_OF_ONE),
    )


def listed(
    connection: Connection, asked: ListQuery, commands: Commands = (), *, limit: int
) -> ListPage[NodeAuditRecord]:
    """Return a page of records, the newest or the oldest first; all pages have the newest `limit`.

    `commands` are those to rollouts, each after the machine of its caller.
    """
    order = "at DESC, node" if asked.down else "at, node DESC"
    found, values = _newest(asked, commands, limit)
    select = f"SELECT *, count(*) OVER () FROM ({found}) ORDER BY {order}"  # noqa: S608
    return ListPage.read(connection, select, values, asked, _record)


def intents(
    connection: Connection, asked: ListQuery, commands: Commands = (), *, limit: int
) -> ListPage[Intent]:
    """Return a page of intents, the newest or the oldest first; see `listed`."""
    latest: dict[tuple[str, str, str], list[_Row]] = {}
    groups: list[list[_Row]] = []
    for row in connection.execute(*_newest(asked, commands, limit)):
        key = row[3], *_key(*row[4:6])
        group = latest.get(key)
        if group is None or not ((key[2] and not key[1]) or _is_same(group, row)):
            group = latest[key] = []
            groups.append(group)
        group.append(row)
    groups.sort(key=lambda group: group[-1][1], reverse=asked.down)
    page = ListPage.of(groups, asked.page)
    return ListPage(rows=[*map(Intent.of, page.rows)], total=page.total, page=page.page)


def _is_same(group: "list[_Row]", row: "_Row") -> bool:
    """Return whether a request belongs to an intent with the same caller and action."""
    first, both = group[0], (group[0], row)
    texts = [one[5] if one[4] == SENT else one[5].partition(", for ")[0] for one in both]
    sent = SENT in (first[4], row[4]) and (texts[0] in texts[1] or texts[1] in texts[0])
    return group[-1][1] - row[1] <= GAP and (sent or first[5] == row[5])


def _key(action: str, subject: str) -> tuple[str, str]:
    """Return the action and the rollout of a record; a rollout's own requests have no action."""
    in_rollout = _ROLLOUT.search(subject) if action == SENT else _ROLLOUT.match(subject)
    if in_rollout is not None:
        return action if action in _COMMANDS else "", in_rollout[1]
    if action == SENT:
        word = subject.partition(":")[0].partition(" ")[0]
        return next((NEEDS[one] for one in Action if one == word), SENT), ""
    return action, ""


def _newest(asked: ListQuery, commands: Commands, limit: int) -> tuple[str, dict[str, Any]]:
    """Return the SELECT of the newest records that match, with its values."""
    filters = {
        "caller = :caller": asked.caller,
        "node = :node": asked.node,
        "action = :action": asked.action,
        "decision = :decision": asked.decision,
        "at >= :since": asked.since is not None,
        "at < :until": asked.until is not None,
        "instr(lower(subject || ' ' || reason), :name)": asked.name,
        f"subject NOT GLOB '{_OF_ROLLOUT}'": asked.rollouts,
    }
    some = " AND ".join(text for text, value in filters.items() if value) or "1"
    matching = f"SELECT {_COLUMNS} FROM {{}} WHERE {some}"  # noqa: S608
    select = (
        f"WITH commands({_COLUMNS}) AS (SELECT {_CELLS} FROM json_each(:commands))"  # noqa: S608
        f" {matching.format('audit')} UNION ALL {matching.format('commands')}"
        " ORDER BY at DESC, node LIMIT :limit"
    )
    sent = json.dumps([_row(*command) for command in commands])
    texts = {key: getattr(asked, key) for key in _FIELDS}
    return select, {"limit": limit, "commands": sent, **texts}


def _row(node: str, record: AuditRecord) -> "_Row":
    """Return the cells of a record, in the order of the columns."""
    return (
        *(node, record.at, record.request, record.caller, record.action, record.subject),
        *(str(record.decision), record.reason, record.times),
    )


def _record(node: str, *values: Any) -> NodeAuditRecord:  # noqa: ANN401 - of the columns
    fields = dict(zip(_COLUMNS.split(", ")[1:], values, strict=True))
    fields["decision"] = AuditDecision(fields["decision"])
    return NodeAuditRecord(node=node, record=AuditRecord(**fields))


def take_away(connection: Connection, *, oldest: float, most: int = MOST) -> None:
    """Delete records before a time, and those beyond a number, the oldest first."""
    connection.execute("DELETE FROM audit WHERE at < ?", (oldest,))
    connection.execute(
        "DELETE FROM audit WHERE at <= (SELECT at FROM audit ORDER BY at DESC LIMIT 1 OFFSET ?)",
        (most,),
    )
