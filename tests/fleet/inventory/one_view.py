"""A view that takes messages step by step; a test kills it.

`python -m tests.fleet.inventory.one_view DIR` tells the number of each step that is on the disk.
With `convert` behind it, it only writes the rows of a view of an earlier format.
"""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.sqlite import Connection
from localpuppet.fleet.inventory import view as views
from localpuppet.fleet.inventory.admission import ReceivedEntry, Tombstone
from localpuppet.fleet.inventory.tables import NAMES
from localpuppet.fleet.inventory.view import View
from tests.doubles.identities import person
from tests.fleet.inventory.entries import entry
from tests.fleet.inventory.entries import received as taken

NOW = 1_800_000_000.0
DB, LB, WEB = people = [person(f"{name}01.example.com") for name in ("db", "lb", "web")]
TOGETHER = 2  # entries in one transaction


def view_of(directory: Path) -> View:
    views.AT_ONCE = TOGETHER
    return View(directory / "state" / "view.sqlite", now=lambda: NOW)


def received(after: float, *, text: str = "x") -> list[ReceivedEntry]:
    return [
        taken(
            one,
            entry(
                one.name, at=NOW + after, facts={"text": text, one.name: 1}, classes=("main", text)
            ),
            revision=int(after),
        )
        for one in people
    ]


def refused() -> Iterable[ReceivedEntry]:
    yield ReceivedEntry(node="x01.example.com", token=b"x", found="no key")


# The messages of the steps that take them, by number. Those of step 7 are older than what was seen.
PARTS: dict[int, Callable[[], list[ReceivedEntry]]] = {
    0: lambda: received(1),
    3: lambda: received(3, text="y"),
    7: lambda: received(2),
    8: lambda: received(5),
}
STEPS: list[Callable[[View], object]] = [
    lambda view: view.take(PARTS[0](), revision=1),
    lambda view: view.note(current=NOW, trust="t", revision=1),
    lambda view: view.take(refused(), revision=2),
    lambda view: view.take(PARTS[3](), revision=3),
    lambda view: view.forget(Tombstone(node=NodeName(DB.name), at=NOW + 4), by="alice"),
    lambda view: view.distrust(LB.name, "its key was revoked"),
    lambda view: view.rebuild(),
    lambda view: view.take(PARTS[7](), revision=2),
    lambda view: view.take(PARTS[8](), revision=5),
]


def content(connection: Connection) -> str:
    """Return all that a view has, without numbers and signatures."""
    tables = {
        "entries": "node, at, revision",
        "seen": "*",
        "refused": "*",
        "state": "*, size - (SELECT coalesce(sum(length(token)), 0) FROM entries)",
        "nodes": "certname, at, environment, roles, release",
        "fact_names": "name",
        "kinds": "(SELECT json_group_array((SELECT name FROM fact_names WHERE id = value))"
        " FROM json_each(names, '$.facts')), names -> 'legacy'",
        "fact_values": "(SELECT certname FROM nodes WHERE nodes.id = fact_values.id & 268435455),"
        " (SELECT name FROM fact_names WHERE fact_names.id = fact_values.id >> 28),"
        " ifnull(value, (SELECT common FROM fact_names n WHERE n.id = fact_values.id >> 28))",
        "classes": "title, (SELECT certname FROM nodes WHERE id = node)",
        "servers": "role, (SELECT certname FROM nodes WHERE id = node)",
    }
    assert tables.keys() >= {*NAMES}
    rows = {
        name: sorted(connection.execute(f"SELECT {columns} FROM {name}").fetchall(), key=repr)  # noqa: S608
        for name, columns in tables.items()
    }
    # The bytes of signed messages differ from run to run.
    rows["state"] = [(*row[1:4], row[5]) for row in rows["state"]]
    return json.dumps(rows)


def main() -> None:
    view = view_of(Path(sys.argv[1]))
    if sys.argv[2:] == ["convert"]:
        view.restore()
        view.close()
        return
    for number, step in enumerate(STEPS):
        step(view)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
