"""The inbox on disk: accepted causes, rollout steps, seen ids, and the newest outcomes.

- A step that began is never taken for one that did not, so that no node runs a step twice.
- Of a resumed rollout, only the newest epoch is accepted, and in an epoch only its first
  controller.
- One caller cannot fill the table for others.

The file is `agent/inbox.sqlite` in the state directory.

- A cause and its id become durable in one transaction, before any action on them.
- A cause is deleted in the transaction that stores its outcome, so that the next agent can report
  it.
- A kill -9 or a power cut undoes nothing that was acknowledged.
- The newest ids are kept, whatever the clock says.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from localpuppet.base.errors import BusyError, LocalpuppetError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.values import Json, field_values
from localpuppet.base.machine.ports import Clock
from localpuppet.base.machine.sqlite import ALWAYS, TABLES, Database, Format, IdTable, sqlite3
from localpuppet.base.value import Value
from localpuppet.fleet.triggers.cause import DROPPED, MOST, RunCause, TriggerOutcome
from localpuppet.fleet.trust.seen import Quota

# Seconds for which a step is kept after its request or its end, and how many are kept.
KEPT = 30 * 86400
STEPS = Quota(shared=10_000, reserve=2_000, few=100, each=5_000)
STEP_TABLES = """
CREATE TABLE IF NOT EXISTS steps (
    owner TEXT NOT NULL, step INTEGER NOT NULL, epoch INTEGER NOT NULL, updated_at INTEGER NOT NULL,
    cause TEXT NOT NULL, began INTEGER NOT NULL, run TEXT, outcome TEXT, reason TEXT NOT NULL,
    PRIMARY KEY (owner, step)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS steps_by_cause ON steps (cause);
"""


class StepState(StrEnum):
    """The state of a step."""

    WAITING = "waiting"
    RUNNING = "running"
    OVER = "over"


class Step(Value):
    """A step, as the node knows it: the outcome of its run, or `DROPPED` without one."""

    state: StepState
    run: str | None = None
    outcome: str = ""
    reason: str = ""

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return field_values(self)


class RolloutCaller(Value):
    """The controller of a rollout; `speaker` is the caller id that has taken it over."""

    owner: str
    epoch: int
    speaker: str = ""


def newest_epoch(connection: sqlite3.Connection, owner: str) -> int:
    """Return the newest known epoch of a rollout; 0 if it is unknown."""
    newest = connection.execute(
        "SELECT coalesce(max(epoch), 0) FROM steps WHERE owner = ?", (owner,)
    )
    return int(newest.fetchone()[0])


def hear(connection: sqlite3.Connection, voice: RolloutCaller, *, now: int, quota: Quota) -> None:
    """Record the controller and the epoch of a rollout, as the reason of its step 0."""
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
        raise BusyError(f"another controller continues this rollout in the same epoch {epoch}")


def speaks(connection: sqlite3.Connection, owner: str) -> tuple[RolloutCaller, int] | None:
    """Return the last controller of a rollout, and when this node first received its epoch."""
    row = connection.execute(
        "SELECT epoch, reason, updated_at FROM steps WHERE owner = ? AND step = 0", (owner,)
    ).fetchone()
    return (
        None if row is None else (RolloutCaller(owner=owner, epoch=row[0], speaker=row[1]), row[2])
    )


def known(connection: sqlite3.Connection, owner: str, step: int) -> Step | None:
    """Return a step; `None` if it was never requested."""
    row = connection.execute(
        "SELECT began, run, outcome, reason FROM steps WHERE owner = ? AND step = ?", (owner, step)
    ).fetchone()
    if row is None:
        return None
    began, run, outcome, reason = row
    if outcome is not None:
        return Step(state=StepState.OVER, run=run, outcome=outcome, reason=reason)
    return Step(state=StepState.RUNNING if began else StepState.WAITING)


def may_begin_again(connection: sqlite3.Connection, owner: str, step: int, epoch: int) -> bool:
    """Return whether to repeat a finished step: it never began, and the rollout was resumed."""
    return (
        connection.execute(
            "SELECT 1 FROM steps WHERE owner = ? AND step = ? AND epoch < ?"
            " AND outcome = ? AND NOT began",
            (owner, step, epoch, DROPPED),
        ).fetchone()
        is not None
    )


def add(
    connection: sqlite3.Connection,
    cause: RunCause,
    step: int,
    *,
    epoch: int,
    now: int,
    quota: Quota,
) -> None:
    """Store a requested step, whose run has this cause."""
    _add(connection, (cause.sender, step, epoch, now, cause.id, 0, None, None, ""), quota)


def _add(connection: sqlite3.Connection, row: tuple[str | int | None, ...], quota: Quota) -> None:
    caller = str(row[0]).partition("/")[0]
    now = row[3]
    connection.execute("DELETE FROM steps WHERE updated_at < ?", (int(now or 0) - KEPT,))
    total = connection.execute("SELECT count(*) FROM steps").fetchone()[0]
    own = connection.execute(
        "SELECT count(*) FROM steps WHERE owner > ? AND owner < ?", (f"{caller}/", f"{caller}0")
    ).fetchone()[0]
    if not quota.has_room(own=own, total=total):
        raise BusyError(
            f"{own} steps of {caller} are stored already, {total} in all: the limit is reached"
        )
    connection.execute("INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def set_began(connection: sqlite3.Connection, cause: str, *, began: bool) -> None:
    """Record that the run of a step begins, or that it did not begin."""
    connection.execute("UPDATE steps SET began = ? WHERE cause = ?", (int(began), cause))


def began(connection: sqlite3.Connection, cause: str) -> bool:
    """Return whether the run of a step began, or was about to, as far as recorded."""
    exists = connection.execute("SELECT 1 FROM steps WHERE cause = ? AND began", (cause,))
    return exists.fetchone() is not None


def end(
    connection: sqlite3.Connection,
    outcome: TriggerOutcome,
    reasons: Mapping[str, str],
    *,
    now: int,
) -> None:
    """Record the end of a step, if the cause is one; its time replaces that of the request."""
    cause = f"{outcome.sender}/{outcome.uuid}"
    connection.execute(
        "UPDATE steps SET run = ?, outcome = ?, reason = ?, updated_at = ? WHERE cause = ?",
        (outcome.run, outcome.outcome, reasons.get(cause, ""), now, cause),
    )


def ended(connection: sqlite3.Connection, owner: str, step: int) -> int | None:
    """Return when a step ended, seconds since 1970; `None` if it has not, or is unknown."""
    row = connection.execute(
        "SELECT updated_at FROM steps WHERE owner = ? AND step = ? AND outcome IS NOT NULL",
        (owner, step),
    ).fetchone()
    return None if row is None else int(row[0])


_VERSION = 3
_EVERYBODY = ""  # ids include their sender; no quota applies here
_TABLES = f"""
CREATE TABLE IF NOT EXISTS causes (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, cause TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS outcomes (
    number INTEGER PRIMARY KEY, outcome TEXT NOT NULL
) STRICT;
{TABLES}
{STEP_TABLES}
"""


class StepRequest(Value):
    """The answer to a request for a step; a `new` one was not requested before, and is run."""

    step: Step
    new: bool


class Inbox:
    """The causes of runs that a node owes; at least `always` of the newest ids are kept."""

    def __init__(
        self, path: Path, clock: Clock, *, always: int = ALWAYS, steps: Quota = STEPS
    ) -> None:
        self._database = Database(
            path,
            Format(tables=_TABLES, version=_VERSION),
            damaged="move it away; what it owed is lost then, so run 'localpuppet apply'",
        )
        self._clock = clock
        self._ids = IdTable(always=always)
        self._quota = steps

    def seen(self, identifier: str) -> bool:
        """Return whether a cause of that id was accepted, and might arrive again."""
        with self._database.use() as connection:
            return self._ids.has(connection, _EVERYBODY, identifier)

    def accept(self, causes: Sequence[tuple[RunCause, int]]) -> None:
        """Store causes, all or none.

        Args:
            causes: Each with the second (since 1970) until which its id is kept.
        """
        now = int(self._clock.now().timestamp())
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO causes (id, cause) VALUES (?, ?)",
                [(cause.id, json.dumps(cause.to_dict())) for cause, _ in causes],
            )
            for cause, until in causes:
                self._ids.add(connection, _EVERYBODY, cause.id, until)
            self._ids.forget(connection, now)

    def receive_rollout(self, voice: RolloutCaller) -> None:
        """Record the controller of a rollout; see `hear`.

        Raises:
            BusyError: A newer epoch is known, or another controller.
        """
        with self._database.transaction() as connection:
            now = int(self._clock.now().timestamp())
            hear(connection, voice, now=now, quota=self._quota)

    def speaks(self, owner: str) -> tuple[RolloutCaller, int] | None:
        """Return the last controller of a rollout, and since when; see `speaks`."""
        with self._database.use() as connection:
            return speaks(connection, owner)

    def step(
        self,
        cause: RunCause,
        number: int,
        *,
        voice: RolloutCaller,
        problem: Callable[[], LocalpuppetError | None],
    ) -> StepRequest:
        """Store a step of a rollout with its cause, unless it was requested before.

        Args:
            cause: The cause of its run; its sender is the owner of the rollout's hold.
            problem: Returns why a new step is rejected, or `None`.

        Raises:
            BusyError: A newer epoch is known, or another controller.
            LocalpuppetError: The problem.
        """
        now = int(self._clock.now().timestamp())
        owner, epoch = voice.owner, voice.epoch
        with self._database.transaction() as connection:
            hear(connection, voice, now=now, quota=self._quota)
            before = known(connection, owner, number)
            if before and not may_begin_again(connection, owner, number, epoch):
                return StepRequest(step=before, new=False)
            if (error := problem()) is not None:
                raise error
            add(connection, cause, number, epoch=epoch, now=now, quota=self._quota)
            connection.execute(
                "INSERT OR IGNORE INTO causes (id, cause) VALUES (?, ?)",
                (cause.id, json.dumps(cause.to_dict())),
            )
        return StepRequest(step=Step(state=StepState.WAITING), new=True)

    def ended(self, owner: str, number: int) -> int | None:
        """Return when a step of a rollout ended; see `ended`."""
        with self._database.use() as connection:
            return ended(connection, owner, number)

    def set_began(self, identifier: str, *, began: bool) -> None:
        """Record that the run of a step begins, before it does; or that it did not begin."""
        with self._database.transaction() as connection:
            set_began(connection, identifier, began=began)

    def began(self, identifier: str) -> bool:
        """Return whether the run of a step had begun."""
        with self._database.use() as connection:
            return began(connection, identifier)

    def settle(
        self,
        identifiers: Iterable[str],
        outcomes: Sequence[TriggerOutcome] = (),
        *,
        reasons: Mapping[str, str] | None = None,
    ) -> None:
        """Delete causes, and store their outcomes.

        Args:
            outcomes: The outcomes to publish; the newest `MOST` are kept.

        Raises:
            StateError: The causes are still on disk, and will be settled again.
        """
        now = int(self._clock.now().timestamp())
        with self._database.transaction() as connection:
            connection.executemany(
                "DELETE FROM causes WHERE id = ?", [(identifier,) for identifier in identifiers]
            )
            connection.executemany(
                "INSERT INTO outcomes (outcome) VALUES (?)",
                [(json.dumps(outcome.to_dict()),) for outcome in outcomes],
            )
            for outcome in outcomes:
                end(connection, outcome, reasons or {}, now=now)
            connection.execute(
                "DELETE FROM outcomes WHERE number <= (SELECT max(number) FROM outcomes) - ?",
                (MOST,),
            )

    def outcomes(self) -> list[TriggerOutcome]:
        """Return the outcomes of the last `MOST` causes, the oldest first."""
        with self._database.use() as connection:
            rows = connection.execute("SELECT outcome FROM outcomes ORDER BY number").fetchall()
        with self._database.damage_errors("outcome"):
            read = [TriggerOutcome.of_published(loads(text)) for (text,) in rows]
        return [outcome for outcome in read if outcome is not None]

    def causes(self) -> list[RunCause]:
        """Return the causes in the order of their acceptance."""
        with self._database.use() as connection:
            rows = connection.execute("SELECT cause FROM causes ORDER BY number").fetchall()
        with self._database.damage_errors("cause"):
            return [RunCause.from_dict(loads(text)) for (text,) in rows]

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._database.close()
