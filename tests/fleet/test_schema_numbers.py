"""Every reader of the fleet's records and messages names another schema number, and none."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import RunId
from localpuppet.fleet.agent.confirmation import Confirmation
from localpuppet.fleet.edges.kicks import HeldKick, kicked_by
from localpuppet.fleet.edges.reactions import ReactionState
from localpuppet.fleet.exports.recording import read_collected
from localpuppet.fleet.exports.resource import parse_resources
from localpuppet.fleet.inventory.admission import Tombstone
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.presence import form_problem
from localpuppet.fleet.requests.request import NodeReply, Request
from localpuppet.fleet.triggers.cause import Trigger
from localpuppet.node.runs.run_records import Records, RunDirectory
from tests.doubles.ports import FakeProcesses

RUN = RunId("20261120T140000.000000Z-abcd")


def read_kicked(raw: Any, path: Path) -> object:
    (path / RUN).mkdir(exist_ok=True)
    (path / RUN / "kicks.json").write_text(json.dumps(raw))
    return kicked_by(Records(path, FakeProcesses()), RUN)


def read_collectors(raw: Any, path: Path) -> object:
    (path / RUN).mkdir(exist_ok=True)
    (path / RUN / "collected.json").write_text(json.dumps(raw))
    return read_collected(RunDirectory(path / RUN))


READERS: list[Callable[[Any, Path], object]] = [
    lambda raw, _: Trigger.parse(json.dumps(raw).encode()),
    lambda raw, _: Request.parse(json.dumps(raw).encode()),
    lambda raw, _: NodeReply.parse(json.dumps(raw).encode()),
    lambda raw, _: Tombstone.parse(json.dumps(raw).encode()),
    lambda raw, _: InventoryEntry.from_dict(raw),
    lambda raw, _: form_problem(raw),
    lambda raw, _: parse_resources(raw, where="exports"),
    lambda raw, _: HeldKick.from_dict(raw),
    lambda raw, _: Confirmation.from_dict(raw),
    lambda raw, _: ReactionState.from_dict(raw),
    read_kicked,
    read_collectors,
]


def problem_of(read: Callable[[Any, Path], object], raw: Any, path: Path) -> str:
    """Return the error of a reader as one line; `form_problem` returns its own."""
    try:
        return str(read(raw, path))
    except LocalpuppetError as error:
        return str(error)


@pytest.mark.parametrize("read", READERS)
def test_another_number_is_named(tmp_path: Path, read: Callable[[Any, Path], object]) -> None:
    assert "has schema 2; this version reads 1" in problem_of(read, {"schema": 2}, tmp_path)
    for raw in ({}, {"schema": "1"}):
        assert "has no schema number; this version reads 1" in problem_of(read, raw, tmp_path)
    assert "schema" not in problem_of(read, {"schema": 1}, tmp_path)
