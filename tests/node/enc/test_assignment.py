"""Assignments: laid over an input, the highest serial in force, kept on disk."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import BusyError, InvalidInputError, StateError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine.flock import Flock
from localpuppet.node.enc.assigned import AssignedRelease
from localpuppet.node.enc.assignment import Assignment, check_newer
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


def test_its_layers_take_the_place_of_the_inputs_and_its_values_win_one_by_one() -> None:
    own = Input.from_dict(
        {
            "app": "foo/assigned",
            "layers": ["ams"],
            "classes": {"foo": {"port": 80, "user": "www"}, "bar": {}},
            "parameters": {"role": "web"},
        }
    )
    given = HELD.over(own)
    assert (given.app, given.layers) == ("foo/tags/r2", ("canary",))
    assert given.data.classes == {"foo": {"port": 81, "user": "www", "name": None}, "bar": {}}
    assert given.data.parameters == {"role": "web"}
    assert replace(HELD, layers=()).over(own).layers == ("ams",)


@pytest.mark.parametrize(
    ("path", "assigned", "source"),
    [
        ("foo/assigned", True, "foo"),
        ("a/b/assigned", True, "a/b"),
        ("foo/tags/assigned", False, "foo"),
        ("foo/branches/assigned", False, "foo"),
        ("assigned", False, "assigned"),
    ],
)
def test_which_inputs_take_one(path: str, assigned: bool, source: str) -> None:
    found = ReleasePath.parse(path, where="app")
    assert (found.is_assigned, found.source) == (assigned, source)


def test_the_next_serial_wins_and_the_same_again_is_the_same() -> None:
    assert check_newer(replace(HELD, serial=1), None)
    assert check_newer(replace(HELD, serial=8), HELD)
    assert not check_newer(replace(HELD, at="", after=""), HELD), "asked again"
    for other in (*(replace(HELD, serial=n) for n in (6, 9)), replace(HELD, by="choria=bob")):
        with pytest.raises(InvalidInputError, match=r"in force is foo/tags/r2, assigned by choria"):
            check_newer(other, HELD)
    with pytest.raises(InvalidInputError, match="has serial 7, and in force is none"):
        check_newer(HELD, None)


def test_it_is_kept_on_disk_and_a_damaged_one_is_said(tmp_path: Path) -> None:
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


def test_others_may_know_all_but_the_values() -> None:
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
def test_an_input_takes_an_assignment_of_its_own_source(
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
    assert reader.read_itself(str(file)).input.app == app


def test_one_process_at_a_time_puts_one_in_force(tmp_path: Path) -> None:
    kept = AssignedRelease(tmp_path)
    first = replace(HELD, serial=1)
    lock = Flock.take(tmp_path / "assignment.lock")
    assert lock is not None
    with pytest.raises(BusyError, match="another process assigns a release"):
        kept.keep(first)
    lock.release()
    kept.keep(first)
    with pytest.raises(InvalidInputError, match="has serial 1, and in force is"):
        kept.keep(replace(first, by="choria=bob"))
    assert kept.read() == first
