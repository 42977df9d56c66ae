"""The table of audit records in the dashboard's memory.

- The newest records of each node are kept, and of all nodes together, so a node that publishes
  ever new records displaces only its own.
- A record with a known identity replaces the earlier one.
- Every function takes a connection in a transaction.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import RolloutId
from localpuppet.base.machine.sqlite import Connection
from localpuppet.fleet.history.history_records import AuditDecision, AuditRecord
from localpuppet.web.dashboard.list_query import ListPage, ListQuery

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
_TEXTS = ("caller", "node", "action", "decision", "text")
# Subjects of requests that are part of a rollout: they begin with its id.
_OF_ROLLOUT = f"rollout {'[0-9]' * 8}T*"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAuditRecord:
    """A request that a node decided."""

    node: str
    record: AuditRecord

    @property
    def rollout(self) -> str:
        """Return the id of the rollout that the request is part of, or empty."""
        words = self.record.subject.replace(",", " ").split()
        try:
            return str(RolloutId.parse(words[1])) if words[:1] == ["rollout"] else ""
        except (IndexError, InvalidInputError):  # a node publishes any text
            return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which records; an empty text matches all.

    Attributes:
        is_single: Only those that are not part of a rollout.
    """

    caller: str = ""
    node: str = ""
    action: str = ""
    decision: str = ""
    text: str = ""
    is_single: bool = False


def write(connection: Connection, node: str, records: Iterable[AuditRecord]) -> None:
    """Write records of a node."""
    connection.executemany(
        "INSERT OR REPLACE INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                *(node, record.at, record.request, record.caller, record.action, record.subject),
                *(str(record.decision), record.reason, record.times),
            )
            for record in records
        ],
    )
    connection.execute(
        "DELETE FROM audit WHERE node = ?1 AND at <="
        " (SELECT at FROM audit WHERE node = ?1 ORDER BY at DESC LIMIT 1 OFFSET ?2)",
        (node, MOST_OF_ONE),
    )


def listed(
    connection: Connection, asked: ListQuery, wanted: AuditFilter, *, limit: int
) -> ListPage[NodeAuditRecord]:
    """Return a page of records, the newest or the oldest first.

    Args:
        limit: Maximum number of all pages, the newest.
    """
    filters = {
        "caller = :caller": wanted.caller,
        "node = :node": wanted.node,
        "action = :action": wanted.action,
        "decision = :decision": wanted.decision,
        "instr(lower(subject || ' ' || reason), :text)": wanted.text,
        f"subject NOT GLOB '{_OF_ROLLOUT}'": wanted.is_single,
    }
    some = " AND ".join(text for text, value in filters.items() if value) or "1"
    order = "at DESC, node" if asked.down else "at, node DESC"
    select = (
        f"SELECT *, count(*) OVER () FROM (SELECT {_COLUMNS} FROM audit WHERE {some}"  # noqa: S608
        f" ORDER BY at DESC, node LIMIT :limit) ORDER BY {order}"
    )
    values = {"limit": limit, **{key: getattr(wanted, key) for key in _TEXTS}}
    return ListPage.read(connection, select, values, asked, _record)


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
