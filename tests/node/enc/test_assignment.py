"""Assignments: localpuppet merges one into an input, checks its serial and stores it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import BusyError, InvalidInputError, StateError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine.flock import Flock
from localpuppet.node.enc.assignment import AssignedRelease, Assignment, check_newer
from localpuppet.node.enc.document import Input
from localpuppet.node.enc.input import InputReader
from tests.rigs.supervised import NO_FETCH

HELD = Assignment(
    release=ReleasePath("foo/tags/r2"),
    serial=7,
    by="choria=alice",
    layers=("canary",),
    classes={"foo": {"port": 81, "name": None}},
    at="2026-11-22T11:00:00.000000Z",
    rollout="20261122T110000Z-0a1b",
    allow_older=True,
    after="20261120T140312.482913Z-7f3a",
)


def test_layers_of_an_assignment_replace_those_of_the_input_and_its_values_take_precedence() -> (
    None
):
    own = Input.from_dict(
        {
            "app": "foo/assigned",
            "layers": ["ams"],
            "classes": {"foo": {"port": 80, "user": "www"}, "bar": {}},
            "parameters": {"role": "web"},
        }
    )
    merged = HELD.over(own)
    assert (merged.app, merged.layers) == ("foo/tags/r2", ("canary",))
    assert merged.data.classes == {"foo": {"port": 81, "user": "www", "name": None}, "bar": {}}
    assert merged.data.parameters == {"role": "web"}
    assert replace(HELD, layers=()).over(own).layers == ("ams",)


def test_only_the_next_serial_is_accepted_and_a_repetition_changes_nothing() -> None:
    assert check_newer(replace(HELD, serial=1), None)
    assert check_newer(replace(HELD, serial=8), HELD)
    assert not check_newer(replace(HELD, at="", after=""), HELD), "a repetition"
    for other in (*(replace(HELD, serial=n) for n in (6, 9)), replace(HELD, by="choria=bob")):
        with pytest.raises(
            InvalidInputError, match=r"assignment in force is foo/tags/r2, assigned by choria"
        ):
            check_newer(other, HELD)
    with pytest.raises(InvalidInputError, match="has serial 7, but no assignment is in force"):
        check_newer(HELD, None)


def test_an_assignment_is_stored_and_damage_is_an_error(tmp_path: Path) -> None:
    kept = AssignedRelease(tmp_path / "var")
    assert kept.read() is None
    held = replace(HELD, serial=1)
    kept.keep(held)
    assert kept.read() == held
    file = tmp_path / "var" / "assignment.json"
    assert file.stat().st_mode & 0o777 == 0o600
    raw = json.loads(file.read_text())
    for damage in ({"serial": "7"}, {"release": "/etc"}, {"at": "soon"}, {"schema": 2}):
        file.write_text(json.dumps({**raw, **damage}))
        with pytest.raises(StateError, match=r"assignment.json: .*assign .* again"):
            kept.read()


def test_the_public_form_of_an_assignment_has_no_values() -> None:
    assert HELD.to_public() == {
        "release": "foo/tags/r2",
        "serial": 7,
        "by": "choria=alice",
        "at": HELD.at,
        "rollout": HELD.rollout,
        "confirm": HELD.confirm,
    }


@pytest.mark.parametrize(
    ("app", "read", "serial"),
    [
        ("foo/assigned", "foo/tags/r2", 7),
        ("bar/assigned", "bar/assigned", 0),
        ("foo/tags/r1", "foo/tags/r1", 0),
    ],
)
def test_an_assignment_applies_only_to_an_input_with_its_source(
    tmp_path: Path, app: str, read: str, serial: int
) -> None:
    file = tmp_path / "input.yaml"
    file.write_text(json.dumps({"app": app}))
    reader = InputReader(
        documents=Documents(None),
        fetch=NO_FETCH,
        user_data=NO_FETCH.user_data,
        assigned=lambda: HELD,
    )
    loaded = reader.read(str(file))
    assert (loaded.input.app, loaded.serial) == (read, serial)
    assert reader.read_unassigned(str(file)).input.app == app


def test_only_one_process_at_a_time_stores_an_assignment(tmp_path: Path) -> None:
    kept = AssignedRelease(tmp_path)
    first = replace(HELD, serial=1)
    lock = Flock.take(tmp_path / "assignment.lock")
    assert lock is not None
    with pytest.raises(BusyError, match="another process assigns a release"):
        kept.keep(first)
    lock.release()
    kept.keep(first)
    with pytest.raises(InvalidInputError, match="has serial 1, but the assignment in force is"):
        kept.keep(replace(first, by="choria=bob"))
    assert kept.read() == first
