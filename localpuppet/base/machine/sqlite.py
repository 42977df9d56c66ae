"""SQLite: the only module that imports it, and rejects a version that is too old.

- Queries need its JSON operators, FULL JOIN and RETURNING; Debian 12 has the oldest supported one.

Example: `from localpuppet.base.machine.sqlite import sqlite3`.
"""

import sqlite3 as sqlite3
from sqlite3 import Connection as Connection

from localpuppet.base.errors import StateError

OLDEST = (3, 40, 1)


def check_version(found: tuple[int, ...]) -> None:
    """Reject a version of SQLite that is too old.

    Raises:
        StateError: It is older than `OLDEST`.
    """
    if found < OLDEST:
        shown, oldest = (".".join(map(str, version)) for version in (found, OLDEST))
        raise StateError(
            f"version {shown} is too old: localpuppet needs {oldest}",
            where="SQLite",
            hint="update the system's libsqlite3",
        )


check_version(sqlite3.sqlite_version_info)
