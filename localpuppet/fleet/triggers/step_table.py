"""The table of the steps of rollouts that a node was asked for, in the inbox's SQLite file.

Owns: the table `steps`. Refuses to know: what a step's run is, and who may ask for one.

Invariants: a step that began is never taken for one that did not, so no node runs twice in one
step; a rollout that was resumed is heard in its newest epoch only, and in an epoch whoever spoke
first; one caller cannot fill the table for others.
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from localpuppet.base.errors import BusyError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.triggers.cause import Cause
from localpuppet.fleet.triggers.outcome import DROPPED, TriggerOutcome
from localpuppet.fleet.trust.quota import Quota

# How long a step is known after it was asked for, or ended, in seconds, and how many are.
KEPT = 30 * 86400
STEPS = Quota(shared=10_000, reserve=2_000, few=100, each=5_000)
TABLES = """
CREATE TABLE IF NOT EXISTS steps (
    owner TEXT NOT NULL, step INTEGER NOT NULL, epoch INTEGER NOT NULL, asked INTEGER NOT NULL,
    cause TEXT NOT NULL, began INTEGER NOT NULL, run TEXT, outcome TEXT, reason TEXT NOT NULL,
    PRIMARY KEY (owner, step)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS steps_by_cause ON steps (cause);
"""


class StepState(StrEnum):
    """Where a step is."""

    WAITING = "waiting"
    RUNNING = "running"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a node knows of a step.

    Attributes:
        state: Where it is.
        run: The run that it led to, if that has an id.
        outcome: How that ended; `DROPPED` where there was none; empty before the end.
        reason: Why it did not succeed, one line.
    """

    state: StepState
    run: str | None = None
    outcome: str = ""
    reason: str = ""

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {
            "state": str(self.state),
            "run": self.run,
            "outcome": self.outcome,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """Who speaks for a rollout.

    Attributes:
        owner: The owner of its holds.
        epoch: Its epoch.
        speaker: Who has taken it over, a caller id; empty where that is its own caller.
    """

    owner: str
    epoch: int
    speaker: str = ""


def newest_epoch(connection: sqlite3.Connection, owner: str) -> int:
    """Return the newest epoch of a rollout that the node heard of; 0 where it heard of none."""
    found = connection.execute(
        "SELECT coalesce(max(epoch), 0) FROM steps WHERE owner = ?", (owner,)
    )
    return int(found.fetchone()[0])


def hear(connection: sqlite3.Connection, voice: Voice, *, now: int, quota: Quota) -> None:
    """Note who speaks for a rollout, and in which epoch: as the reason of its step 0.

    Raises:
        BusyError: A newer epoch is known, or somebody else speaks in this one; or the table is
            full.
    """
    owner, epoch = voice.owner, voice.epoch
    newest = newest_epoch(connection, owner)
    if newest > epoch:
        raise BusyError(f"this rollout was resumed since (epoch {newest}, this is {epoch})")
    if newest < epoch:
        _add(connection, (owner, 0, epoch, now, "", 0, None, None, voice.speaker), quota)
        return
    first = connection.execute(
        "SELECT reason FROM steps WHERE owner = ? AND step = 0 AND epoch = ?", (owner, epoch)
    ).fetchone()
    if first is not None and first[0] != voice.speaker:
        raise BusyError(f"somebody else goes on with this rollout, in the same epoch {epoch}")


def speaks(connection: sqlite3.Connection, owner: str) -> tuple[Voice, int] | None:
    """Return who spoke for a rollout last, and since when; `None` where nobody did.

    Returns:
        The voice, and the second (since 1970) in which its epoch was first heard here.
    """
    row = connection.execute(
        "SELECT epoch, reason, asked FROM steps WHERE owner = ? AND step = 0", (owner,)
    ).fetchone()
    return None if row is None else (Voice(owner=owner, epoch=row[0], speaker=row[1]), row[2])


def known(connection: sqlite3.Connection, owner: str, step: int) -> Step | None:
    """Return what is known of a step; `None` where it was never asked for."""
    row = connection.execute(
        "SELECT began, run, outcome, reason FROM steps WHERE owner = ? AND step = ?", (owner, step)
    ).fetchone()
    if row is None:
        return None
    began, run, outcome, reason = row
    if outcome is not None:
        return Step(state=StepState.OVER, run=run, outcome=outcome, reason=reason)
    return Step(state=StepState.RUNNING if began else StepState.WAITING)


def may_begin_anew(connection: sqlite3.Connection, owner: str, step: int, epoch: int) -> bool:
    """Return whether a step that is over is to be taken again: it never began, and was resumed."""
    return (
        connection.execute(
            "SELECT 1 FROM steps WHERE owner = ? AND step = ? AND epoch < ?"
            " AND outcome = ? AND NOT began",
            (owner, step, epoch, DROPPED),
        ).fetchone()
        is not None
    )


def add(
    connection: sqlite3.Connection, cause: Cause, step: int, *, epoch: int, now: int, quota: Quota
) -> None:
    """Note that a step was asked for, whose run has this cause.

    Raises:
        BusyError: The table is full.
    """
    _add(connection, (cause.sender, step, epoch, now, cause.id, 0, None, None, ""), quota)


def _add(connection: sqlite3.Connection, row: tuple[str | int | None, ...], quota: Quota) -> None:
    caller = str(row[0]).partition("/")[0]
    now = row[3]
    connection.execute("DELETE FROM steps WHERE asked < ?", (int(now or 0) - KEPT,))
    total = connection.execute("SELECT count(*) FROM steps").fetchone()[0]
    own = connection.execute(
        "SELECT count(*) FROM steps WHERE owner > ? AND owner < ?", (f"{caller}/", f"{caller}0")
    ).fetchone()[0]
    if not quota.has_room(own=own, total=total):
        raise BusyError(
            f"{own} steps of {caller} are remembered already, {total} in all: no more are taken"
        )
    connection.execute("INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def set_began(connection: sqlite3.Connection, cause: str, *, began: bool) -> None:
    """Note that the run of a step begins; or that it did not after all."""
    connection.execute("UPDATE steps SET began = ? WHERE cause = ?", (int(began), cause))


def began(connection: sqlite3.Connection, cause: str) -> bool:
    """Return whether the run of a step was about to begin when this was last heard of."""
    found = connection.execute("SELECT 1 FROM steps WHERE cause = ? AND began", (cause,))
    return found.fetchone() is not None


def end(
    connection: sqlite3.Connection,
    outcome: TriggerOutcome,
    reasons: Mapping[str, str],
    *,
    now: int,
) -> None:
    """Note how a step ended, if the cause was one, and when in the place of when it was asked for.

    Args:
        connection: Where.
        outcome: What became of the cause.
        reasons: Id of a cause → why it did not succeed.
        now: Seconds since 1970.
    """
    cause = f"{outcome.sender}/{outcome.uuid}"
    connection.execute(
        "UPDATE steps SET run = ?, outcome = ?, reason = ?, asked = ? WHERE cause = ?",
        (outcome.run, outcome.outcome, reasons.get(cause, ""), now, cause),
    )


def ended(connection: sqlite3.Connection, owner: str, step: int) -> int | None:
    """Return when a step ended, seconds since 1970; `None` if it has not, or is unknown."""
    row = connection.execute(
        "SELECT asked FROM steps WHERE owner = ? AND step = ? AND outcome IS NOT NULL",
        (owner, step),
    ).fetchone()
    return None if row is None else int(row[0])
