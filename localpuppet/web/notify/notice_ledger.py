"""Which incidents each channel knows, and the messages that wait, in `web/notify.sqlite`.

- One transaction decides and writes: incidents, who has been told, and messages to send. A message
  is deleted once its channel has taken it. So a kill at any write loses no message, and one that
  was under way is sent again with the same id.
- The messages of a channel keep their order.
- A channel that is new gets one message about all that is open. It gets one, too, if more than
  `AT_ONCE` incidents open or close together, and one a minute after as many messages. It also gets
  one if the end of an incident was forgotten before it got a message, and instead of messages that
  wait if one of them is too old.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from localpuppet.base.formats.converter import JsonRecord, from_record, to_record
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.machine.sqlite import Connection, Database, Format
from localpuppet.base.value import Value
from localpuppet.web.notify.routing import Incident, Route
from localpuppet.web.notify.wording import MOST_LISTED, Event, IncidentText, Notice

T = TypeVar("T")
FILE = Path("web", "notify.sqlite")
# Incidents that open or close in one look, above which a channel gets one message for all.
AT_ONCE = 10
# After as many incidents within these seconds there is one message for all, with a pause between.
WITHIN, BETWEEN = 300.0, 60.0
# Seconds for which a message is tried, and messages that wait for a channel: the newest.
TRIED = 86400.0
MOST_WAITING = 500
# Seconds between attempts: the first, doubled each time up to the last.
FIRST, LAST = 5.0, 900.0
# A channel that may be tried; of a later time, the clock was set back.
_DUE = f"(next_at <= :now OR next_at > :now + {LAST})"
_TABLES = """
CREATE TABLE IF NOT EXISTS incidents (key TEXT PRIMARY KEY, incident TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS told (
    channel TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (channel, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (
    number INTEGER PRIMARY KEY AUTOINCREMENT, channel TEXT NOT NULL, notice TEXT NOT NULL,
    at REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS outbox_by_channel ON outbox (channel, number);
CREATE TABLE IF NOT EXISTS channels (
    channel TEXT PRIMARY KEY, problem TEXT NOT NULL, attempts INTEGER NOT NULL,
    next_at REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS statuses (
    channel TEXT NOT NULL, hash TEXT NOT NULL, sent TEXT NOT NULL, PRIMARY KEY (channel, hash)
) STRICT, WITHOUT ROWID;
"""


class SentStatus(JsonRecord):
    """The last attempt to send a commit's status, and how many the git host took.

    `shown` is what the git host shows since an attempt that succeeded.
    """

    shown: str = ""
    problem: str = ""
    at: float = 0.0
    taken: int = 0

    def after(self, shown: str, problem: str, now: float) -> "SentStatus":
        """Return the record after an attempt; `problem` is empty if the git host took it."""
        if problem:
            return replace(self, problem=problem, at=now)
        return SentStatus(shown=shown, at=now, taken=self.taken + 1)


class ChannelState(Value):
    """How a channel is: why its last attempt failed, and how many messages wait."""

    problem: str
    waiting: int


@dataclass(slots=True, eq=False)
class NoticeLedger:
    path: Path
    fleet: str
    dashboard: str
    spread: Callable[[], float]  # returns a factor from 0 to 1, by which pauses differ
    new_id: Callable[[], str] = lambda: f"msg_{uuid.uuid4().hex}"
    _database: Database = field(init=False)
    # When incidents went to each channel. A restart forgets it, and then sends some more messages.
    _told_at: dict[str, list[float]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._database = Database(
            self.path,
            Format(tables=_TABLES, version=1),
            damaged="move the file away: channels are then told once what is open",
        )

    def close(self) -> None:
        self._database.close()

    def advance(
        self,
        decide: Callable[[Mapping[str, Incident]], Mapping[str, Incident]],
        routes: Iterable[Route],
        *,
        channels: Iterable[str],
        now: float,
    ) -> Mapping[str, Incident]:
        """Write what `decide` makes of the known incidents, and the messages about it; return them.

        Some of the channels of the settings may have no route now. The ledger forgets others, so
        that one which is added again later is new.
        """
        with self._database.transaction() as connection:
            before = _incidents(connection)
            after = decide(before)
            gone = [(key,) for key in before.keys() - after.keys()]
            connection.executemany("DELETE FROM incidents WHERE key = ?", gone)
            connection.executemany(
                "INSERT OR REPLACE INTO incidents VALUES (?, ?)",
                [(key, _json(one)) for key, one in after.items() if before.get(key) != one],
            )
            names = json.dumps([*channels])
            for table in ("outbox", "told", "channels", "statuses"):
                connection.execute(
                    f"DELETE FROM {table} WHERE channel NOT IN (SELECT value FROM json_each(?))",  # noqa: S608
                    (names,),
                )
            for route in routes:
                if not route.channel.type.takes_states:
                    self._tell(connection, route, after, now)
        return after

    def _tell(
        self, connection: Connection, route: Route, after: Mapping[str, Incident], now: float
    ) -> None:
        name = route.name
        is_new = bool(
            connection.execute(
                "INSERT OR IGNORE INTO channels VALUES (?, '', 0, 0) RETURNING 1", (name,)
            ).fetchone()
        )
        rows = connection.execute("SELECT id FROM told WHERE channel = ?", (name,))
        told = {key for (key,) in rows}
        is_open = {one.id for one in after.values() if one.is_open}
        texts = {
            one.id: IncidentText.of(one, route, self.dashboard)
            for one in after.values()
            if one.id in told or (one.is_open and route.wants(one.condition))
        }
        opened = [text for key, text in texts.items() if key not in told]
        closed = [text for key, text in texts.items() if key in told and key not in is_open]
        # Their end was forgotten before the channel got a message about it.
        lost = told - texts.keys()
        last = [at for at in self._told_at.get(name, ()) if 0 <= now - at < WITHIN]
        is_much = len(last) >= AT_ONCE
        if is_much and now - last[-1] < BETWEEN:
            return  # a later look finds the same
        is_late = connection.execute(
            "SELECT 1 FROM outbox WHERE channel = ? AND at < ?", (name, now - TRIED)
        ).fetchone()
        if is_late:
            connection.execute("DELETE FROM outbox WHERE channel = ?", (name,))
        connection.executemany(
            "INSERT INTO told VALUES (?, ?)", [(name, text.id) for text in opened]
        )
        connection.executemany(
            "DELETE FROM told WHERE channel = ? AND id = ?", [(name, key) for key in told - is_open]
        )
        changes = min(len(opened) + len(closed) + len(lost), AT_ONCE)
        self._told_at[name] = [*last, *[now] * changes]
        is_many = len(opened) > AT_ONCE or len(closed) > AT_ONCE
        if is_new or is_late or lost or is_many or (is_much and changes):
            still = [text for key, text in texts.items() if key in is_open]
            self._put(connection, name, Event.SUMMARY, still, now)
            return
        for event, incidents in ((Event.CLOSED, closed), (Event.OPENED, opened)):
            for one in sorted(incidents, key=lambda text: (text.opened_at, text.id)):
                self._put(connection, name, event, [one], now)

    def _put(
        self,
        connection: Connection,
        channel: str,
        event: Event,
        incidents: Sequence[IncidentText],
        now: float,
    ) -> None:
        worst = sorted(incidents, key=lambda one: (-one.severity.place, one.opened_at, one.id))
        notice = Notice(
            id=self.new_id(),
            event=event,
            fleet=self.fleet,
            at=now,
            total=len(worst),
            incidents=tuple(worst[:MOST_LISTED]),
        )
        connection.execute(
            "INSERT INTO outbox (channel, notice, at) VALUES (?, ?, ?)",
            (channel, _json(notice), now),
        )
        connection.execute(
            "DELETE FROM outbox WHERE number IN (SELECT number FROM outbox WHERE channel = ?"
            " ORDER BY number DESC LIMIT -1 OFFSET ?)",
            (channel, MOST_WAITING),
        )

    def next_notice(self, channel: str, *, now: float) -> tuple[int, Notice] | None:
        """Return the oldest message for a channel with its number; `None` if none is due."""
        with self._database.snapshot() as connection:
            row = connection.execute(
                "SELECT number, notice FROM outbox JOIN channels USING (channel)"  # noqa: S608
                f" WHERE channel = :channel AND {_DUE} ORDER BY number LIMIT 1",
                {"channel": channel, "now": now},
            ).fetchone()
        return None if row is None else (row[0], _of(Notice, row[1]))

    def take_away(self, number: int) -> None:
        """Delete a message that its channel has taken."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM outbox WHERE number = ?", (number,))

    def forget_before(self, moment: float) -> None:
        """Delete messages that were decided on before: another process has sent them."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM outbox WHERE at < ?", (moment,))

    def is_due(self, channel: str, *, now: float) -> bool:
        """Return whether a channel may be tried: it did well, or its pause is over."""
        with self._database.snapshot() as connection:
            paused = connection.execute(
                f"SELECT 1 FROM channels WHERE channel = :channel AND NOT {_DUE}",  # noqa: S608
                {"channel": channel, "now": now},
            ).fetchone()
        return paused is None

    def note(self, channel: str, problem: str, *, now: float, longest: float = LAST) -> None:
        """Write how an attempt to reach a channel ended; `problem` is empty if it did well.

        The next attempt comes after a pause of at most `longest` seconds; 0 for none.
        """
        with self._database.transaction() as connection:
            row = connection.execute(
                "SELECT attempts FROM channels WHERE channel = ?", (channel,)
            ).fetchone()
            attempts = 0 if row is None else int(row[0])
            if problem:
                pause = min(longest, FIRST * 2.0 ** min(attempts, 20)) * (1 + self.spread()) / 2
                values = (channel, problem, attempts + 1 if longest else 1, now + pause)
            elif attempts:
                values = (channel, "", 0, 0.0)
            else:
                return
            connection.execute("INSERT OR REPLACE INTO channels VALUES (?, ?, ?, ?)", values)

    def sent_statuses(self, channel: str) -> dict[str, SentStatus]:
        """Return the last statuses that were sent to a git host, by commit."""
        with self._database.snapshot() as connection:
            rows = connection.execute(
                "SELECT hash, sent FROM statuses WHERE channel = ?", (channel,)
            ).fetchall()
        return {commit: _of(SentStatus, sent) for commit, sent in rows}

    def note_status(self, channel: str, commit: str, sent: SentStatus) -> None:
        """Write how an attempt to send the status of a commit ended."""
        row = (channel, commit, _json(sent))
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO statuses VALUES (?, ?, ?)", row)

    def states(self, names: Iterable[str]) -> dict[str, ChannelState]:
        """Return how channels are, by name."""
        with self._database.snapshot() as connection:
            rows = connection.execute(
                "SELECT channel, problem, (SELECT count(*) FROM outbox"
                " WHERE outbox.channel = channels.channel) FROM channels ORDER BY channel"
            ).fetchall()
        return {
            name: ChannelState(problem=problem, waiting=waiting)
            for name, problem, waiting in rows
            if name in {*names}
        }


def _incidents(connection: Connection) -> dict[str, Incident]:
    rows = connection.execute("SELECT key, incident FROM incidents")
    return {key: _of(Incident, text) for key, text in rows}


def _json(record: Incident | Notice | SentStatus) -> str:
    return json.dumps(to_record(record))


def _of(form: type[T], text: str) -> T:
    return from_record(form, loads_again(text.encode()))
