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
from localpuppet.base.machine.sqlite import ALWAYS, TABLES, Connection, Database, Format, IdTable
from localpuppet.base.value import Value
from localpuppet.fleet.triggers.cause import DROPPED, MOST, RunCause, TriggerOutcome
from localpuppet.fleet.trust.seen import Quota

_VERSION = 3
_EVERYBODY = ""  # ids include their sender; no quota applies here
# Seconds for which a step is kept after its request or its end, and how many are kept.
KEPT = 30 * 86400
STEPS = Quota(shared=10_000, reserve=2_000, few=100, each=5_000)
_TABLES = f"""
CREATE TABLE IF NOT EXISTS causes (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, cause TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS outcomes (
    number INTEGER PRIMARY KEY, outcome TEXT NOT NULL
) STRICT;
{TABLES}
CREATE TABLE IF NOT EXISTS steps (
    owner TEXT NOT NULL, step INTEGER NOT NULL, epoch INTEGER NOT NULL, updated_at INTEGER NOT NULL,
    cause TEXT NOT NULL, began INTEGER NOT NULL, run TEXT, outcome TEXT, reason TEXT NOT NULL,
    PRIMARY KEY (owner, step)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS steps_by_cause ON steps (cause);
"""


class StepState(StrEnum):
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
        return field_values(self)


class RolloutCaller(Value):
    """The controller of a rollout; `speaker` is the caller id that has taken it over."""

    owner: str
    epoch: int
    speaker: str = ""


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
        """Store causes, all or none, each with the second until which its id is kept."""
        with self._database.transaction() as connection:
            for cause, until in causes:
                _add_cause(connection, cause)
                self._ids.add(connection, _EVERYBODY, cause.id, until)
            self._ids.forget(connection, self._now())

    def receive_rollout(self, voice: RolloutCaller) -> None:
        """Record the controller and the epoch of a rollout; `BusyError` if another is known."""
        with self._database.transaction() as connection:
            self._hear(connection, voice)

    def speaks(self, owner: str) -> tuple[RolloutCaller, int] | None:
        """Return the last controller of a rollout, and when this node first received its epoch."""
        with self._database.use() as connection:
            row = connection.execute(
                "SELECT epoch, reason, updated_at FROM steps WHERE owner = ? AND step = 0", (owner,)
            ).fetchone()
        if row is None:
            return None
        return RolloutCaller(owner=owner, epoch=row[0], speaker=row[1]), row[2]

    def step(
        self,
        cause: RunCause,
        number: int,
        *,
        voice: RolloutCaller,
        problem: Callable[[], LocalpuppetError | None],
    ) -> tuple[Step, bool]:
        """Store a step of a rollout with its cause; return it, and whether it is new, to be run.

        Args:
            cause: The cause of its run; its sender is the owner of the rollout's hold.
            problem: Returns why a new step is rejected, or `None`.

        Raises:
            BusyError: A newer epoch is known, or another controller.
        """
        with self._database.transaction() as connection:
            self._hear(connection, voice)
            known = connection.execute(
                "SELECT began, run, outcome, reason, epoch FROM steps WHERE owner = ? AND step = ?",
                (voice.owner, number),
            ).fetchone()
            if known is not None:
                began, run, outcome, reason, epoch = known
                if outcome is None:
                    return Step(state=StepState.RUNNING if began else StepState.WAITING), False
                # A step that never began is repeated in a later epoch.
                if began or outcome != DROPPED or epoch >= voice.epoch:
                    over = Step(state=StepState.OVER, run=run, outcome=outcome, reason=reason)
                    return over, False
            if (error := problem()) is not None:
                raise error
            self._add_step(connection, voice, number, cause=cause.id)
            _add_cause(connection, cause)
        return Step(state=StepState.WAITING), True

    def ended(self, owner: str, number: int) -> int | None:
        """Return when a step ended, seconds since 1970; `None` if it has not, or is unknown."""
        with self._database.use() as connection:
            row = connection.execute(
                "SELECT updated_at FROM steps WHERE owner = ? AND step = ? AND outcome IS NOT NULL",
                (owner, number),
            ).fetchone()
        return None if row is None else int(row[0])

    def set_began(self, identifier: str, *, began: bool) -> None:
        """Record that the run of a step begins, before it does; or that it did not begin."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE steps SET began = ? WHERE cause = ?", (int(began), identifier)
            )

    def began(self, identifier: str) -> bool:
        """Return whether the run of a step had begun, or was about to, as far as recorded."""
        find = "SELECT 1 FROM steps WHERE cause = ? AND began"
        with self._database.use() as connection:
            return connection.execute(find, (identifier,)).fetchone() is not None

    def settle(
        self,
        identifiers: Iterable[str],
        outcomes: Sequence[TriggerOutcome] = (),
        *,
        reasons: Mapping[str, str] | None = None,
    ) -> None:
        """Delete causes, and store their outcomes, of which the newest `MOST` are kept.

        The end of a step replaces its request's time. After a `StateError`, the causes are still on
        disk, and will be settled again.
        """
        now, reasons = self._now(), reasons or {}
        with self._database.transaction() as connection:
            connection.executemany(
                "DELETE FROM causes WHERE id = ?", [(identifier,) for identifier in identifiers]
            )
            for outcome in outcomes:
                cause = f"{outcome.sender}/{outcome.uuid}"
                connection.execute(
                    "INSERT INTO outcomes (outcome) VALUES (?)", (json.dumps(outcome.to_dict()),)
                )
                connection.execute(
                    "UPDATE steps SET run = ?, outcome = ?, reason = ?, updated_at = ?"
                    " WHERE cause = ?",
                    (outcome.run, outcome.outcome, reasons.get(cause, ""), now, cause),
                )
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

    def _now(self) -> int:
        return int(self._clock.now().timestamp())

    def _hear(self, connection: Connection, voice: RolloutCaller) -> None:
        """Record the controller and the epoch of a rollout, as the reason of its step 0."""
        owner, epoch = voice.owner, voice.epoch
        (newest,) = connection.execute(
            "SELECT coalesce(max(epoch), 0) FROM steps WHERE owner = ?", (owner,)
        ).fetchone()
        if newest > epoch:
            raise BusyError(f"this rollout was resumed since (epoch {newest}, this is {epoch})")
        if newest < epoch:
            self._add_step(connection, voice, 0, reason=voice.speaker)
            return
        first = connection.execute(
            "SELECT reason FROM steps WHERE owner = ? AND step = 0 AND epoch = ?", (owner, epoch)
        ).fetchone()
        if first is not None and first[0] != voice.speaker:
            raise BusyError(f"another controller continues this rollout in the same epoch {epoch}")

    def _add_step(
        self,
        connection: Connection,
        voice: RolloutCaller,
        number: int,
        *,
        cause: str = "",
        reason: str = "",
    ) -> None:
        caller, now = voice.owner.partition("/")[0], self._now()
        connection.execute("DELETE FROM steps WHERE updated_at < ?", (now - KEPT,))
        own, total = connection.execute(
            "SELECT count(*) FILTER (WHERE owner > ? AND owner < ?), count(*) FROM steps",
            (f"{caller}/", f"{caller}0"),
        ).fetchone()
        if not self._quota.has_room(own=own, total=total):
            raise BusyError(
                f"{own} steps of {caller} are stored already, {total} in all: the limit is reached"
            )
        connection.execute(
            "INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?, 0, NULL, NULL, ?)",
            (voice.owner, number, voice.epoch, now, cause, reason),
        )


def _add_cause(connection: Connection, cause: RunCause) -> None:
    connection.execute(
        "INSERT OR IGNORE INTO causes (id, cause) VALUES (?, ?)",
        (cause.id, json.dumps(cause.to_dict())),
    )
