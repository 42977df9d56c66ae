"""The tables of runs in the dashboard's memory, a row of them, and the key of a run.

- A row decides nothing: the node decided the result, the failure cause and the counts when the run
  ended. Its fields have the names of the summary that the node signed. A run without a summary,
  which only the presence of a dead node tells, has fewer.
- Any day can be used: the memory uses the day on which the run ended, so the moment of a run that
  was requested on an earlier day is negative.
- Of two runs of a day, the later one has the larger moment.
- Each text (a node's name, a reason) and each profile (outcome, release, environment) is stored
  once. Runs are clustered by the day on which they ended, so that a day is written and deleted
  together, and the newest are found without an index; see `filed` for the moment of a run. A text
  or profile is deleted with the last day that uses it.
- Triggers keep the number of runs by day (`tallies`) and each node's newest run (`latest`), which
  is no refusal because of a hold or of another run.
- The number of runs by hour and result (`hours`) stays when runs are deleted to make room. A run
  whose summary corrects its result counts once.
- A node whose day is full adds no texts, nor does a run that is known: a node that sends a thousand
  new entries a second does not fill the file.
- Every function takes a connection in a transaction.
"""

from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.text import cut_to_bytes
from localpuppet.base.machine.sqlite import Connection
from localpuppet.base.value import Value
from localpuppet.fleet.history.history_records import (
    DAY,
    ResourceSummary,
    RunCounts,
    RunSummary,
    day_of,
)
from localpuppet.fleet.inventory.run_end import LATER, Kind, RunEnd
from localpuppet.node.puppet.resources import ResourceResult

# Seconds for which ends of runs are kept.
KEPT = 90 * 86400.0
HOUR = 3600.0


class RunRow(Value):
    """A run, with the columns of the table of runs."""

    node: str
    run: str
    finished_at: float
    outcome: Kind
    release: str
    reason: str  # the first error or the reason
    place: str = ""  # file and line of the first error
    failure_cause: str = ""  # the key of its failure cause, see `RunEnd.failure_key`
    cause: str = ""
    seconds: int | None = None  # its duration; `None` without a run summary
    commit: str = ""
    environment: str = ""
    noop: bool = False
    corrective_change: bool = False
    refusal: str = ""
    counts: RunCounts | None = None  # resources by result; `None` without a run summary
    resources: tuple[ResourceSummary, ...] = ()
    more: int = 0  # how many further such resources there are

    @classmethod
    def of_end(cls, node: str, end: RunEnd, **more: Any) -> "RunRow":  # noqa: ANN401 - fields
        """Return the end of a run of a node; `more` has what only a run summary says."""
        return cls(
            node=node,
            run=end.run,
            finished_at=end.finished_at,
            outcome=end.kind,
            release=end.release,
            reason=end.shown_cause.error or end.reason,
            place=end.shown_cause.place,
            failure_cause=end.failure_key,
            **more,
        )

    @classmethod
    def of_summary(cls, node: str, summary: RunSummary) -> "RunRow":
        return cls.of_end(
            node,
            summary,
            cause=summary.cause,
            seconds=round(summary.finished_at - summary.started_at),
            commit=summary.commit or "",
            environment=summary.environment,
            noop=summary.noop,
            corrective_change=summary.corrective_change,
            refusal=summary.refusal or "",
            counts=summary.counts,
            resources=summary.resources,
            more=summary.more,
        )


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_OF_A_DAY = timedelta(days=1) // _MICROSECOND
# Bits of the four random digits of an id.
_RANDOM = 16


# The moments of a day.
MOMENTS = _OF_A_DAY << _RANDOM


def number_of(run: RunId) -> int:
    """Return the number of a run's id; the moment of day 0."""
    return (run.time - _EPOCH) // _MICROSECOND << _RANDOM | int(run.rpartition("-")[2], 16)


def parts_of(run: RunId) -> tuple[int, int]:
    """Return the day on which a run was requested, days since 1970, and the moment."""
    return divmod(number_of(run), MOMENTS)


def filed(run: RunId, ended: float) -> tuple[int, int]:
    """Return the day on which a run ended, not before its request, and the moment; see `TABLES`."""
    day = max(parts_of(run)[0], day_of(ended))
    return day, number_of(run) - day * MOMENTS


def run_of(day: int, moment: int) -> RunId:
    """Return the id of a run with a moment that counts from the beginning of a day."""
    time = _EPOCH + timedelta(days=day, microseconds=moment >> _RANDOM)
    # Its year by itself: what `%Y` has of one before 1000 depends on the C library.
    return RunId(f"{time.year:04}{time:%m%dT%H%M%S.%f}Z-{moment & (1 << _RANDOM) - 1:04x}")


# Runs of a node and a day, the newest.
MOST_A_DAY = 500
# Resources of a node and a day, the first.
MOST_RESOURCES_A_DAY = 1000
# Days within which a run is compared with the one before it.
REPEATED_WITHIN = 7
# Bytes of a text; a longer one would have pages of the file for itself.
MAX_TEXT_BYTES = 400
# The condition of a profile whose runs count. A refusal because of a hold or of another run does
# not: the node runs later, and Puppet sends no report then either.
IS_COUNTED = f"refusal NOT IN ({', '.join(map(repr, map(str, LATER)))})"
TABLES = f"""
CREATE TABLE IF NOT EXISTS texts (
    id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE, day INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS texts_by_day ON texts (day);
CREATE TABLE IF NOT EXISTS profiles (
    id INTEGER PRIMARY KEY, outcome TEXT NOT NULL, release TEXT NOT NULL, environment TEXT NOT NULL,
    commit_id TEXT NOT NULL, noop INTEGER NOT NULL, corrective INTEGER NOT NULL,
    refusal TEXT NOT NULL, day INTEGER NOT NULL, first INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS profiles_by_value ON profiles
    (outcome, release, environment, commit_id, noop, corrective, refusal);
CREATE TABLE IF NOT EXISTS runs (
    day INTEGER NOT NULL, node INTEGER NOT NULL, moment INTEGER NOT NULL, at INTEGER NOT NULL,
    profile INTEGER NOT NULL, counts INTEGER, reason INTEGER NOT NULL,
    cause INTEGER NOT NULL, seconds INTEGER, more INTEGER NOT NULL,
    place INTEGER, PRIMARY KEY (day, node, moment)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS runs_over_midnight ON runs (day, node) WHERE moment < 0;
CREATE TABLE IF NOT EXISTS tallies (
    day INTEGER NOT NULL, profile INTEGER NOT NULL, runs INTEGER NOT NULL,
    PRIMARY KEY (day, profile)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS latest (
    node INTEGER PRIMARY KEY, day INTEGER NOT NULL, moment INTEGER NOT NULL, ended INTEGER NOT NULL
) STRICT;
CREATE TRIGGER IF NOT EXISTS run_added AFTER INSERT ON runs BEGIN
    INSERT INTO tallies VALUES (new.day, new.profile, 1)
        ON CONFLICT DO UPDATE SET runs = runs + 1;
    INSERT INTO latest SELECT new.node, new.day, new.moment, new.day * 86400000 + new.at
        FROM profiles WHERE id = new.profile AND {IS_COUNTED}
        ON CONFLICT DO UPDATE SET day = excluded.day, moment = excluded.moment,
        ended = excluded.ended WHERE excluded.ended >= ended;
END;
CREATE TRIGGER IF NOT EXISTS run_deleted AFTER DELETE ON runs BEGIN
    UPDATE tallies SET runs = runs - 1 WHERE day = old.day AND profile = old.profile;
    DELETE FROM latest WHERE node = old.node AND day = old.day AND moment = old.moment;
END;
CREATE TABLE IF NOT EXISTS hours (
    hour INTEGER NOT NULL, outcome TEXT NOT NULL, runs INTEGER NOT NULL, PRIMARY KEY (hour, outcome)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS resources (
    day INTEGER NOT NULL, node INTEGER NOT NULL, moment INTEGER NOT NULL, number INTEGER NOT NULL,
    resource INTEGER NOT NULL, result INTEGER NOT NULL, PRIMARY KEY (day, node, moment, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS resources_corrected ON resources (day, node, resource, moment)
    WHERE result & 1;
"""  # noqa: S608
# A statement that gives the runs of format 11 the column of their place.
PLACES = "ALTER TABLE runs ADD COLUMN place INTEGER;"
# Statements that file runs of format 9 by the day of their end, not by that of their request.
CONVERSION = f"""
DROP INDEX long_runs; DROP TRIGGER run_added; DROP TRIGGER run_deleted; DROP TABLE run_changes;
UPDATE texts SET day = day + (SELECT ifnull(max(at), 0) / 86400000 FROM runs);
UPDATE profiles SET day = day + (SELECT ifnull(max(at), 0) / 86400000 FROM runs);
UPDATE resources SET (day, moment) = (
    SELECT day + at / 86400000, moment - at / 86400000 * {MOMENTS} FROM runs
    WHERE (day, node, moment) = (resources.day, resources.node, resources.moment)
) WHERE EXISTS (SELECT 1 FROM runs WHERE at >= 86400000
    AND (day, node, moment) = (resources.day, resources.node, resources.moment));
UPDATE runs SET day = day + at / 86400000, moment = moment - at / 86400000 * {MOMENTS},
    at = at % 86400000 WHERE at >= 86400000;
DELETE FROM latest;
INSERT INTO latest SELECT node, runs.day, moment, max(runs.day * 86400000 + at)
    FROM runs JOIN profiles ON id = profile WHERE {IS_COUNTED}
    GROUP BY node;
{PLACES}
"""  # noqa: S608
# Results of resources, as the table has them: twice the number, and 1 more for drift.
RESULTS = (
    ResourceResult.FAILED,
    ResourceResult.CHANGED,
    ResourceResult.WOULD_CHANGE,
    ResourceResult.SKIPPED,
)
# Milliseconds a second: `at` counts them from the beginning of the day, in four bytes.
MILLI = 1000
LAST = 86_399_999
COUNTS = tuple(field.name for field in fields(RunCounts))
_KEY = "day = ? AND node = ? AND moment = ?"
# The condition of a run with an id; for `id_values`.
HAS_ID = (
    "(runs.day = :of_day AND moment = :moment OR moment < 0 AND runs.day > :of_day"
    f" AND moment = :moment - (runs.day - :of_day) * {MOMENTS})"
)
_KNOWN_RUN = (
    "SELECT runs.day, node, moment, seconds, at, outcome FROM runs"  # noqa: S608
    f" JOIN profiles ON profiles.id = profile WHERE node = :node AND {HAS_ID}"
)
_COUNT_RUNS = (
    "INSERT INTO hours VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET runs = runs + excluded.runs"
)
_PROFILE = "outcome, release, environment, commit_id, noop, corrective, refusal"
_IS_KNOWN = f"SELECT 1 FROM profiles WHERE ({_PROFILE}) = (?, ?, ?, ?, ?, ?, ?) AND day >= ?"  # noqa: S608
_USE_PROFILE = (
    f"INSERT INTO profiles ({_PROFILE}, day, first) VALUES (?, ?, ?, ?, ?, ?, ?, ?8, ?8)"  # noqa: S608
    f" ON CONFLICT ({_PROFILE}) DO UPDATE SET day = max(day, excluded.day),"
    " first = min(first, excluded.first) RETURNING id, first, day"
)
_USE_TEXT = (
    "INSERT INTO texts (text, day) VALUES (?, ?) ON CONFLICT (text) DO UPDATE"
    " SET day = max(day, excluded.day) RETURNING id, 0, day"
)
# Values by column of a run's profile, and those of a profile that says only the outcome.
_Profile = tuple[str | int, ...]
_NO_PROFILE = ("", "", "", 0, 0, "")
GOOD_KINDS = (Kind.CHANGED, Kind.CORRECTED, Kind.UNCHANGED)


@dataclass(slots=True, eq=False)
class RunTableWriter:
    connection: Connection
    _: KW_ONLY
    most: int = MOST_A_DAY
    most_resources: int = MOST_RESOURCES_A_DAY
    _known: dict[str | _Profile, tuple[int, range]] = field(default_factory=dict, init=False)

    def add(self, result: RunRow) -> bool:
        """Add an end of a run, or its summary; return whether either is new, and fits its day."""
        run = RunId(result.run)
        day, moment = filed(run, result.finished_at)
        key = day, self._number(result.node, day), moment
        known = self.connection.execute(_KNOWN_RUN, {"node": key[1], **id_values(run)}).fetchone()
        if known is not None and result.seconds in (None, known[3]):
            return False
        oldest = self._oldest_of_full(*key[:2])
        full = oldest is not None
        if known is not None:
            self._delete("runs", known[:3])  # known without its summary, or of an earlier one
            self._count(known[0], known[4], known[5], -1)
            if known[:3] != key:
                self._delete("resources", known[:3])
                known = None
        if known is None and oldest is not None and moment < oldest:
            return False
        number = self._known_number if full else self._number
        counts = None if result.counts is None else number(_counts_text(result.counts), day)
        texts = [number(text, day) for text in (result.reason, result.cause)]
        at = min(max(0, round((result.finished_at - day * DAY) * MILLI)), LAST)
        self.connection.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *key,
                at,
                self._profile(result, day, full=full),
                counts,
                *texts,
                result.seconds,
                result.more,
                number(result.place, day) if result.place else None,
            ),
        )
        if known is not None or oldest is None:
            self._count(day, at, str(result.outcome), 1)
            self._add_resources(key, result)
            return True
        for table in ("runs", "resources"):
            self._delete(table, (*key[:2], oldest))
        return False

    def _count(self, day: int, at: int, outcome: str, runs: int) -> None:
        """Add a number of runs to the count of their hour and result."""
        self.connection.execute(_COUNT_RUNS, (day * 24 + at // (3600 * MILLI), outcome, runs))

    def _delete(self, table: str, key: tuple[int, int, int]) -> None:
        self.connection.execute(f"DELETE FROM {table} WHERE {_KEY}", key)  # noqa: S608

    def _add_resources(self, key: tuple[int, int, int], result: RunRow) -> None:
        """Add the resources of a run that still fit its day."""
        if not result.resources:
            return
        (used,) = self.connection.execute(
            "SELECT count(*) FROM resources WHERE day = ? AND node = ?", key[:2]
        ).fetchone()
        some = result.resources[: max(0, self.most_resources - used)]
        repeats = result.outcome in GOOD_KINDS and self._repeats(key)
        self.connection.executemany(
            "INSERT OR REPLACE INTO resources VALUES (?, ?, ?, ?, ?, ?)",
            [
                (
                    *key,
                    number,
                    self._number(_resource_text(part), key[0]),
                    2 * RESULTS.index(part.status)
                    + (
                        part.corrective_change
                        or (repeats and part.status is ResourceResult.CHANGED)
                    ),
                )
                for number, part in enumerate(some)
            ],
        )
        left = result.more + len(result.resources) - len(some)
        self.connection.execute(f"UPDATE runs SET more = ? WHERE {_KEY}", (left, *key))  # noqa: S608

    def _repeats(self, key: tuple[int, int, int]) -> bool:
        """Return whether the node's run before had already applied the release of a run."""
        day, node, moment = key
        last = (
            "SELECT release, outcome FROM runs JOIN profiles ON profiles.id = profile"
            " WHERE runs.day = ? AND node = ? AND moment {} ?"
        )
        release = self.connection.execute(last.format("="), key).fetchone()[0]
        for earlier in range(day, day - REPEATED_WITHIN, -1):
            before = moment if earlier == day else 1 << 62
            row = self.connection.execute(
                last.format("<") + " ORDER BY moment DESC LIMIT 1", (earlier, node, before)
            ).fetchone()
            if row is not None:
                return row[0] == release and row[1] in GOOD_KINDS
        return False

    def _oldest_of_full(self, day: int, node: int) -> int | None:
        """Return the oldest run of a full day; `None` if the day has room."""
        row: tuple[int] | None = self.connection.execute(
            "SELECT moment FROM runs WHERE day = ? AND node = ?"
            " ORDER BY moment DESC LIMIT 1 OFFSET ?",
            (day, node, self.most - 1),
        ).fetchone()
        return None if row is None else row[0]

    def _profile(self, result: RunRow, day: int, *, full: bool) -> int:
        """Return the number of a run's profile; on a full day of a known one, or of its outcome."""
        texts = map(_cut, (result.release, result.environment, result.commit))
        flags = int(result.noop), int(result.corrective_change)
        profile: _Profile = (str(result.outcome), *texts, *flags, result.refusal)
        if full and not self.connection.execute(_IS_KNOWN, (*profile, day)).fetchone():
            profile = (str(result.outcome), *_NO_PROFILE)
        return self._used(profile, day, _USE_PROFILE, (*profile, day))

    def _known_number(self, text: str, day: int) -> int:
        """Return the number of a text that this or a later day uses, else of the empty text."""
        row: tuple[int] | None = self.connection.execute(
            "SELECT id FROM texts WHERE text = ? AND day >= ?", (_cut(text), day)
        ).fetchone()
        return self._number("", day) if row is None else row[0]

    def _number(self, text: str, day: int) -> int:
        """Return the number of a text; add it if unknown, and extend its use to the day."""
        text = _cut(text)
        return self._used(text, day, _USE_TEXT, (text, day))

    def _used(
        self, key: "str | _Profile", day: int, statement: str, values: tuple[str | int, ...]
    ) -> int:
        number, days = self._known.get(key, (0, range(0)))
        if day in days:
            return number
        row: tuple[int, int, int] = self.connection.execute(statement, values).fetchone()
        self._known[key] = row[0], range(row[1], row[2] + 1)
        return row[0]


def id_values(run: RunId) -> dict[str, int]:
    """Return the values of `HAS_ID`."""
    of_day, moment = parts_of(run)
    return {"of_day": of_day, "moment": moment}


def _cut(text: str) -> str:
    return cut_to_bytes(text, MAX_TEXT_BYTES)


def _counts_text(counts: RunCounts) -> str:
    return ",".join(str(getattr(counts, name)) for name in COUNTS)


def _resource_text(part: ResourceSummary) -> str:
    line = "" if part.line is None else part.line
    return f"{line}\t{part.file}\t{part.containing_class}\t{part.resource}"


def first_day(connection: Connection) -> int | None:
    """Return the first day with runs, or `None`."""
    (day,) = connection.execute("SELECT min(day) FROM runs").fetchone()
    return None if day is None else int(day)


def take_away(connection: Connection, *, until: int | None = None, most: int) -> int:
    """Delete some of the oldest runs, of days before `until`; return their number."""
    day = first_day(connection)
    if day is None or (until is not None and day >= until):
        return 0
    beyond = connection.execute(
        "SELECT node, moment FROM runs WHERE day = ? ORDER BY node, moment LIMIT 1 OFFSET ?",
        (day, most),
    ).fetchone()
    some, values = ("", ()) if beyond is None else (" AND (node, moment) < (?, ?)", beyond)
    for table in ("resources", "runs"):
        away = connection.execute(f"DELETE FROM {table} WHERE day = ?{some}", (day, *values))  # noqa: S608
    if beyond is None:
        for table in ("texts", "profiles"):
            connection.execute(f"DELETE FROM {table} WHERE day <= ?", (day,))  # noqa: S608
        connection.execute("DELETE FROM tallies WHERE runs = 0")
    return int(away.rowcount)
