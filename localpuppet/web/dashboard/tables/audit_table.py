"""The table of audit records in the dashboard's memory.

- The newest records of each node are kept, and of all nodes together, so a node that publishes
  ever new records displaces only its own.
- A record with a known identity replaces the earlier one.
- Every function takes a connection in a transaction.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import RolloutId
from localpuppet.base.machine.sqlite import Connection
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

# Subjects of requests that are part of a rollout: they begin with its id.
_OF_ROLLOUT = f"rollout {'[0-9]' * 8}T*"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAuditRecord:
    """A request that a node decided.

    Attributes:
        node: The node.
        record: What it published.
    """

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
        caller: Those of this caller.
        node: Those of this node.
        action: Those with this action.
        decision: Those with this decision.
        text: Those with this text, in lower case, in subject or reason.
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


def audit(connection: Connection, wanted: AuditFilter, *, limit: int) -> list[NodeAuditRecord]:
    """Return records, the newest first.

    Args:
        connection: The connection.
        wanted: Which records.
        limit: Maximum number.
    """
    filters = {
        "caller = ?": wanted.caller,
        "node = ?": wanted.node,
        "action = ?": wanted.action,
        "decision = ?": wanted.decision,
        "instr(lower(subject || ' ' || reason), ?)": wanted.text,
        "subject NOT GLOB ?": _OF_ROLLOUT if wanted.is_single else "",
    }
    given = {text: value for text, value in filters.items() if value}
    rows = connection.execute(
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
        for name, at, request, sender, action, subject, decision, reason, times in rows
    ]


def take_away(connection: Connection, *, oldest: float, most: int = MOST) -> None:
    """Delete records before a time, and those beyond a number, the oldest first."""
    connection.execute("DELETE FROM audit WHERE at < ?", (oldest,))
    connection.execute(
        "DELETE FROM audit WHERE at <= (SELECT at FROM audit ORDER BY at DESC LIMIT 1 OFFSET ?)",
        (most,),
    )
