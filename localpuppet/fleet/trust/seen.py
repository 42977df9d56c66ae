"""Remember accepted ids in `seen.sqlite` of the state directory, to reject repeated messages.

Example: of 1,000 places, with a reserve of 200 for owners with fewer than 20, one owner takes
1,000; ten others still get 20 places each.

- An id is on disk before `add` reports it as new, so that it is not new again after a crash.
- If several processes add the same id, only one of them gets it as new.
- Ids are kept until they expire. The newest are kept longer, in case the clock is set back.
- Each owner has a quota, and a reserve is kept for owners with few ids.
- Damage, a full disk and too many ids are errors; the id is not reported as new.
"""

from pathlib import Path

from localpuppet.base.errors import StateError
from localpuppet.base.machine.ports import Clock
from localpuppet.base.machine.sqlite import ALWAYS, TABLES, Database, Format, IdTable, sqlite3
from localpuppet.base.value import Value


class Quota(Value):
    """A limit for all owners, with a reserve for owners with few places.

    Attributes:
        shared: The number of places for all owners.
        reserve: Additional places for owners with few; `shared + reserve` is never exceeded.
        few: An owner with fewer places than this may use the reserve.
    """

    shared: int
    reserve: int
    few: int
    each: int | None = None

    def has_room(self, *, own: int, total: int) -> bool:
        """Return whether an owner may take another place."""
        if self.each is not None and own >= self.each:
            return False
        return total < self.shared or (own < self.few and total < self.shared + self.reserve)


LIMIT = 100_000
EACH = 10_000
FEW = 100
_VERSION = 2


class SeenIds:
    """A durable set of ids, each with an owner and an expiry time.

    Args:
        limit: The number of ids kept, and a fifth more for owners with fewer than `FEW`. When it is
            reached, new ids are rejected until some expire: removing the oldest would allow
            replays.
        each: The number of ids kept for one owner; `always` that of the newest, also expired.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        limit: int = LIMIT,
        each: int = EACH,
        always: int = ALWAYS,
    ) -> None:
        self._database = Database(
            path,
            Format(tables=TABLES, version=_VERSION),
            damaged="move it away when the last signed message is older than two hours",
        )
        self._clock = clock
        self._ids = IdTable(always=always)
        self._quota = Quota(shared=limit, reserve=limit // 5, few=FEW, each=each)

    def add(self, owner: str, identifier: str, until: int) -> bool:
        """Remember an owner's id until a time; return whether it is new.

        Raises:
            StateError: The database failed or is full.
        """
        now = int(self._clock.now().timestamp())
        with self._database.transaction() as connection:
            if self._ids.has(connection, owner, identifier):
                return False
            self._ids.forget(connection, now, more=1)
            if not self._has_room(connection, owner):
                self._ids.forget_all(connection, now)  # many ids of one second count as the newest
            if not self._has_room(connection, owner):
                raise self._full(connection, owner)
            self._ids.add(connection, owner, identifier, until)
        return True

    def _has_room(self, connection: sqlite3.Connection, owner: str) -> bool:
        own, total = self._ids.of(connection, owner), self._ids.total(connection)
        return self._quota.has_room(own=own, total=total)

    def _full(self, connection: sqlite3.Connection, owner: str) -> StateError:
        own, total = self._ids.of(connection, owner), self._ids.total(connection)
        one_has_all = own >= (self._quota.each or total)
        what = f"{own} ids of {owner}" if one_has_all else f"{total} ids"
        more = f"further ids of {owner}" if one_has_all else "further ids"
        return StateError(
            f"{what} are stored already: localpuppet rejects {more}",
            where=str(self._database.path),
            hint="find out which process sends them; each expires with its message",
        )

    def close(self) -> None:
        """Close the database; the next `add` opens it again."""
        self._database.close()
