"""A list as a file: CSV, JSON, or one name a line.

Owns: the columns, and that no program takes a cell for a formula. Refuses to know: who asked.
"""

import csv
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime

from localpuppet.formats.times import show_time
from localpuppet.web.row import Row

COLUMNS = ("node", "state", "outcome", "ended", "release", "roles", "why", "run")
# What a spreadsheet takes for a formula: https://owasp.org/www-community/attacks/CSV_Injection.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(rows: Sequence[Row]) -> str:
    """Return rows as CSV with a head; a cell that begins like a formula gets an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_neutral(cell) for cell in _cells(row)])
    return text.getvalue()


def as_json(rows: Sequence[Row], *, as_of: float | None) -> str:
    """Return rows as JSON.

    Args:
        rows: Which.
        as_of: When the bus last answered: seconds since 1970; `None` where it never did.
    """
    nodes = [dict(zip(COLUMNS, _cells(row), strict=True)) | {"roles": row.roles} for row in rows]
    return json.dumps({"schema": 1, "as_of": _shown(as_of), "nodes": nodes}, indent=1)


def as_names(rows: Sequence[Row]) -> str:
    """Return the names of the nodes, one a line."""
    return "".join(f"{row.node}\n" for row in rows)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.node,
        row.state,
        str(row.kind),
        _shown(row.ended) or "",
        row.app,
        " ".join(row.roles),
        row.why,
        row.run,
    )


def _shown(seconds: float | None) -> str | None:
    return None if seconds is None else show_time(datetime.fromtimestamp(seconds, UTC))


def _neutral(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA) else cell
