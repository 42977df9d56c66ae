"""The order of releases: by tag timestamps, otherwise by first application."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.releases.release_records import Ledger, TagMemory
from tests.node import make

R1, R2, R3, R4 = (ReleasePath(f"web/tags/r{number}") for number in range(1, 5))
ROLLBACK = make.rollback()


def tagged(state: Path, app: ReleasePath, time: int) -> None:
    memory = TagMemory(state)
    name = f"{int(app[-1]):040x}"
    pin = make.pin("web", app.rpartition("/")[2], tag_object=name, commit=name)
    memory.note_pin(app, pin)
    memory.note_time(name, time)
    assert memory.pin(app) == pin
    assert memory.tagged_at(app) == time


def test_an_allowed_step_back_does_not_change_the_order(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for app in (R1, R2, R3, R2):
        ledger.note(app)
    assert ledger.current("web") == R2
    assert ledger.order("web") == [R1, R2, R3]
    ledger.check_forward(R2)
    ledger.check_forward(R3)
    ledger.check_forward(R4)
    with pytest.raises(
        InvalidInputError, match="web/tags/r1: is older than web/tags/r2, which was"
    ):
        ledger.check_forward(R1)


def test_tag_timestamps_order_releases_that_were_never_applied(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    tagged(tmp_path, R2, 200)
    tagged(tmp_path, R4, 400)
    ledger.note(R4)
    with pytest.raises(InvalidInputError, match="by tag timestamp"):
        ledger.check_forward(R2)
    ledger.note(R2)  # an allowed step back
    ledger.check_forward(R4)
    ledger.check_forward(R3)  # the ledger does not know this release


def test_for_equal_timestamps_the_order_of_application_decides(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for app in (R1, R2):
        tagged(tmp_path, app, 100)
        ledger.note(app)
    with pytest.raises(InvalidInputError, match="which was applied after it"):
        ledger.check_forward(R1)


def test_a_rollback_is_stored(tmp_path: Path) -> None:
    Ledger(tmp_path).roll_back(ROLLBACK)
    assert Ledger(tmp_path).rollback() == ROLLBACK


READERS: dict[str, Callable[[Path], object]] = {
    "applied.json": lambda path: Ledger(path).check_forward(R1),
    "tags.json": lambda path: TagMemory(path).pin(R1),
    "rollback.json": lambda path: Ledger(path).rollback(),
}


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("applied.json", {"order": {"web": 5}}),
        ("applied.json", {"order": {"web": [5]}}),
        ("applied.json", {"current": []}),
        ("applied.json", {"current": {"web": 5}}),
        ("applied.json", {"schema": 2}),
        ("tags.json", {"pins": []}),
        ("tags.json", {"schema": 2}),
        ("rollback.json", {"user": 5}),
        ("rollback.json", {"node_document": []}),
        ("rollback.json", {"serial": "1"}),
        ("rollback.json", {"since": "now"}),
        ("rollback.json", {"more": 1}),
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, file: str, damage: dict[str, object]) -> None:
    read = READERS[file]
    tagged(tmp_path, R1, 100)
    ledger = Ledger(tmp_path)
    ledger.note(R1)
    ledger.roll_back(ROLLBACK)
    read(tmp_path)
    good = json.loads((tmp_path / file).read_text())
    for text in (json.dumps({**good, **damage}), "[]", '{"schema": 1}'):
        (tmp_path / file).write_text(text)
        with pytest.raises(StateError, match=f"{re.escape(file)}: (is damaged|has schema 2)"):
            read(tmp_path)
