"""The order of releases: by tag timestamps, otherwise by first application."""

import json
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.names import ReleasePath, RunId
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.git.git_names import GitUrl, Tag
from localpuppet.node.releases.ledger import Ledger, Rollback
from localpuppet.node.releases.tag_memory import TagMemory
from tests.rigs.node import Node

R1, R2, R3, R4 = (ReleasePath(f"web/tags/r{number}") for number in range(1, 5))
ROLLBACK = Rollback(
    release=R1,
    run=RunId("20261120T140312.482913Z-7f3a"),
    node_document={"classes": {}},
    input_sha256="0" * 64,
    user="bob",
    since="2026-11-20T14:00:00Z",
    input_release="web/tags/r2",
    serial=0,
)


def tagged(state: Path, app: ReleasePath, time: int) -> None:
    memory = TagMemory(state)
    name = f"{int(app[-1]):040x}"
    pin = Pin(
        url=GitUrl("https://git.example.com/web.git"),
        tag=Tag(app.rpartition("/")[2]),
        tag_object=name,
        commit=name,
        tree_sha256="0" * 64,
    )
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
    with pytest.raises(InvalidInputError, match="web/tags/r1 is older than web/tags/r2, which was"):
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


@pytest.mark.parametrize(
    "text",
    [
        '{"schema": 1, "order": {"web": ["web/tags/r1"]}}',
        '{"schema": 1, "order": {"web": 5}, "current": {}}',
        '{"schema": 1, "order": {"web": [5]}, "current": {}}',
        '{"schema": 1, "order": {}, "current": []}',
        '{"schema": 1, "order": {}, "current": {"web": 5}}',
        '{"schema": 2, "order": {}, "current": {}}',
        "[]",
    ],
)
def test_the_error_of_a_damaged_ledger_names_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "applied.json").write_text(text)
    with pytest.raises(StateError, match=r"applied\.json: is damaged"):
        Ledger(tmp_path).check_forward(R1)


@pytest.mark.parametrize("text", ['{"schema": 1, "pins": [], "times": {}}', '{"schema": 2}'])
def test_the_error_of_a_damaged_tag_memory_names_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "tags.json").write_text(text)
    with pytest.raises(StateError, match=r"tags\.json: is damaged"):
        TagMemory(tmp_path).pin(R1)


@pytest.mark.parametrize(
    "field", [{"user": 5}, {"node_document": []}, {"serial": "1"}, {"since": "now"}, {"more": 1}]
)
def test_the_error_of_a_damaged_rollback_names_its_file(
    tmp_path: Path, field: dict[str, object]
) -> None:
    ledger = Ledger(tmp_path)
    ledger.roll_back(ROLLBACK)
    assert ledger.rollback() == ROLLBACK
    file = tmp_path / "rollback.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **field}))
    with pytest.raises(StateError, match=r"rollback\.json: is damaged"):
        ledger.rollback()


def test_check_refuses_an_older_release_as_apply_does(node: Node) -> None:
    for tag in ("r1", "r2"):
        node.write(f"modules/foo/tags/{tag}/manifest.yaml", "modules: {}\n")
    order = {"foo": ["foo/tags/r1", "foo/tags/r2"]}
    applied = {"schema": 1, "order": order, "current": {"foo": "foo/tags/r2"}}
    node.write("var/applied.json", json.dumps(applied))
    node.write("input.yaml", "app: foo/tags/r2\n")
    assert node.run("check").code == 0
    file = node.write("input.yaml", "app: foo/tags/r1\n")
    for arguments in ([], [str(file)]):
        refused = node.run("check", *arguments)
        assert refused.code == 2
        assert "input.yaml: app: foo/tags/r1 is older than foo/tags/r2" in refused.err
