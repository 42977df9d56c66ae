"""The table of audit records in the dashboard's memory.

- The newest records of each node are kept, and of all nodes together, so a node that publishes
  ever new records displaces only its own.
- A record with a known identity replaces the earlier one.
- Every function takes a connection in a transaction.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from sqlite3 import Connection

from localpuppet.fleet.history.audit_record import AuditDecision, AuditRecord

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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAuditRecord:
    """A request that a node decided.

    Attributes:
        node: The node.
        record: What it published.
    """

    node: str
    record: AuditRecord


def write(connection: Connection, node: str, records: Iterable[AuditRecord]) -> None:
    """Write records of a node."""
    connection.executemany(
        "INSERT OR REPLACE INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                *(node, one.at, one.request, one.caller, one.action, one.subject),
                *(str(one.decision), one.reason, one.times),
            )
            for one in records
        ],
    )
    connection.execute(
        "DELETE FROM audit WHERE node = ?1 AND at <="
        " (SELECT at FROM audit WHERE node = ?1 ORDER BY at DESC LIMIT 1 OFFSET ?2)",
        (node, MOST_OF_ONE),
    )


def audit(
    connection: Connection,
    *,
    caller: str | None = None,
    node: str | None = None,
    before: float | None = None,
    limit: int,
) -> list[NodeAuditRecord]:
    """Return records, the newest first.

    Args:
        connection: The connection.
        caller: Only requests of this caller.
        node: Only requests to this node.
        before: Only requests that were decided before this time, seconds since 1970.
        limit: Maximum number.
    """
    filters = {"caller = ?": caller, "node = ?": node, "at < ?": before}
    given = {text: value for text, value in filters.items() if value is not None}
    found = connection.execute(
        "SELECT node, at, request, caller, action, subject, decision, reason, times FROM audit"  # noqa: S608
        f" WHERE {' AND '.join(given) or '1'} ORDER BY at DESC, node LIMIT ?",
        (*given.values(), limit),
    )
    return [
        NodeAuditRecord(
            node=name,
            record=AuditRecord(
                at=at,
                request=request,
                caller=sender,
                action=action,
                subject=subject,
                decision=AuditDecision(decision),
                reason=reason,
                times=times,
            ),
        )
        for name, at, request, sender, action, subject, decision, reason, times in found
    ]


def take_away(connection: Connection, *, oldest: float, most: int = MOST) -> None:
    """Delete records before a time, and those beyond a number, the oldest first."""
    connection.execute("DELETE FROM audit WHERE at < ?", (oldest,))
    connection.execute(
        "DELETE FROM audit WHERE at <= (SELECT at FROM audit ORDER BY at DESC LIMIT 1 OFFSET ?)",
        (most,),
    )
