"""Ids that were taken once and are not taken again, on disk.

Owns: `seen.sqlite` in the state directory. Refuses to know: what the ids are of.

One caller cannot fill it for others: each has a quota, and a part is kept for who has little.

Invariants: an id is on the disk before `add` says that it is new, so that neither a kill -9 nor
a power cut makes it new again; of several processes that add the same id, one is told that it is
new; nothing is forgotten before its time, and the newest not even then, since a clock may be set
back; and whatever goes wrong (damage, no room, too many ids) is an error and never "new".
"""

import sqlite3
from pathlib import Path

from localpuppet.base.errors import StateError
from localpuppet.base.machine.database import Database, Format
from localpuppet.base.machine.id_table import ALWAYS, TABLES, IdTable, from_first_format
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.trust.quota import Quota

LIMIT = 100_000
EACH = 10_000
FEW = 100
_VERSION = 2
# In the first format an id was "CALLER ID", of the kind "request".
_FIRST = from_first_format("substr(id, 1, instr(id, ' ') - 1), substr(id, instr(id, ' ') + 1)")


class SeenIds:
    """A durable set of ids, each with its owner and the time until which it is kept.

    Args:
        path: The SQLite file; made when first needed, 0600.
        clock: Tells what may be forgotten.
        limit: How many ids are kept, and a fifth more for owners with fewer than `FEW`. Beyond it
            nothing new is taken until some expire: to forget the oldest would open the door that
            this closes.
        each: How many ids are kept of one owner.
        always: How many are kept though they have expired, the newest.
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
            Format(tables=TABLES, version=_VERSION, upgrades={1: _FIRST}),
            damaged="move it away when the last signed message is older than two hours",
        )
        self._clock = clock
        self._ids = IdTable(always=always)
        self._quota = Quota(shared=limit, reserve=limit // 5, few=FEW, each=each)

    def add(self, owner: str, identifier: str, until: int) -> bool:
        """Remember an id; return whether it is new.

        Args:
            owner: Whose id it is; ids of different owners do not meet.
            identifier: The id.
            until: Seconds since 1970; it is remembered at least so long.

        Raises:
            StateError: It cannot be told, or cannot be remembered.
        """
        now = int(self._clock.now().timestamp())
        with self._database.transaction() as connection:
            if self._ids.has(connection, owner, identifier):
                return False
            self._ids.forget(connection, now, more=1)
            if not self._has_room(connection, owner):
                self._ids.forget_all(connection, now)  # many of one second count as the newest
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
        more = f"nothing more of {owner}'s" if one_has_all else "nothing more"
        return StateError(
            f"{what} are remembered already: {more} is taken",
            where=str(self._database.path),
            hint="each is kept until its message has expired; who sends so many?",
        )

    def close(self) -> None:
        """Close the file; the next `add` opens it again."""
        self._database.close()
