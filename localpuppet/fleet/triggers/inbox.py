"""The inbox on disk: accepted causes, seen ids, and the newest outcomes.

The file is `agent/inbox.sqlite` in the state directory.

- A cause and its id become durable in one transaction, before any action on them.
- A cause is deleted in the transaction that stores its outcome, so that the next agent can report
  it.
- A kill -9 or a power cut undoes nothing that was acknowledged.
- The newest ids are kept, whatever the clock says.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.machine.database import Database, Format
from localpuppet.base.machine.id_table import ALWAYS, TABLES, IdTable
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.fleet.triggers import step_table
from localpuppet.fleet.triggers.cause import RunCause
from localpuppet.fleet.triggers.outcome import MOST, TriggerOutcome
from localpuppet.fleet.triggers.step_table import RolloutCaller, Step, StepState
from localpuppet.fleet.trust.quota import Quota

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
{step_table.TABLES}
"""


class StepRequest(Value):
    """The answer to a request for a step.

    Attributes:
        step: The state of the step.
        new: Whether to run the step: it was not requested before.
    """

    step: Step
    new: bool


class Inbox:
    """The causes of runs that a node owes.

    Args:
        path: The SQLite file; created at first use, 0600.
        clock: The node's clock, for the expiry of ids.
        always: Minimum number of newest ids to keep.
    """

    def __init__(
        self, path: Path, clock: Clock, *, always: int = ALWAYS, steps: Quota = step_table.STEPS
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
        """Record the controller of a rollout; see `step_table.hear`.

        Raises:
            BusyError: A newer epoch is known, or another controller.
        """
        with self._database.transaction() as connection:
            now = int(self._clock.now().timestamp())
            step_table.hear(connection, voice, now=now, quota=self._quota)

    def speaks(self, owner: str) -> tuple[RolloutCaller, int] | None:
        """Return the last controller of a rollout, and since when; see `step_table.speaks`."""
        with self._database.use() as connection:
            return step_table.speaks(connection, owner)

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
            number: The number of the step.
            voice: The controller of the rollout.
            problem: Returns why a new step is rejected, or `None`.

        Raises:
            BusyError: A newer epoch is known, or another controller.
            LocalpuppetError: The problem.
        """
        now = int(self._clock.now().timestamp())
        owner, epoch = voice.owner, voice.epoch
        with self._database.transaction() as connection:
            step_table.hear(connection, voice, now=now, quota=self._quota)
            known = step_table.known(connection, owner, number)
            if known and not step_table.may_begin_again(connection, owner, number, epoch):
                return StepRequest(step=known, new=False)
            if (error := problem()) is not None:
                raise error
            step_table.add(connection, cause, number, epoch=epoch, now=now, quota=self._quota)
            connection.execute(
                "INSERT OR IGNORE INTO causes (id, cause) VALUES (?, ?)",
                (cause.id, json.dumps(cause.to_dict())),
            )
        return StepRequest(step=Step(state=StepState.WAITING), new=True)

    def ended(self, owner: str, number: int) -> int | None:
        """Return when a step of a rollout ended; see `step_table.ended`."""
        with self._database.use() as connection:
            return step_table.ended(connection, owner, number)

    def set_began(self, identifier: str, *, began: bool) -> None:
        """Record that the run of a step begins, before it does; or that it did not begin."""
        with self._database.transaction() as connection:
            step_table.set_began(connection, identifier, began=began)

    def began(self, identifier: str) -> bool:
        """Return whether the run of a step had begun."""
        with self._database.use() as connection:
            return step_table.began(connection, identifier)

    def settle(
        self,
        identifiers: Iterable[str],
        outcomes: Sequence[TriggerOutcome] = (),
        *,
        reasons: Mapping[str, str] | None = None,
    ) -> None:
        """Delete causes, and store their outcomes.

        Args:
            identifiers: The ids of the causes.
            outcomes: The outcomes to publish; the newest `MOST` are kept.
            reasons: Id of a cause → why it did not succeed, for steps of rollouts.

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
                step_table.end(connection, outcome, reasons or {}, now=now)
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
