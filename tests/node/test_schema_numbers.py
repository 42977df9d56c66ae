"""Every reader of a node's records names another schema number, or a missing one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.converter import Message
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.puppet.report import KICKS, read_noted
from localpuppet.node.releases.branches import StagedBranch
from localpuppet.node.releases.release_records import Ledger, StagedRelease
from localpuppet.node.runs.holds import Holds
from localpuppet.node.runs.interface import Interface
from localpuppet.node.runs.query_record import read_queries
from localpuppet.node.runs.run import Attempt, Status
from localpuppet.node.runs.run_records import GoodRun, RunDirectory
from tests.doubles.ports import FakeClock
from tests.node import make


def read_file(raw: Any, file: Path, read: Callable[[Path], object]) -> object:
    """Write a record, and return what `read` returns for the directory of its owner."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{json.dumps(raw)}\n")
    return read(file.parent)


class Note(Message):
    SCHEMA = 1


# Reader → the number that it reads.
READERS: dict[Callable[[Any, Path], object], int] = {
    lambda raw, _: Status.from_dict(raw): 1,
    lambda raw, _: Attempt.from_dict(raw): 1,
    lambda raw, _: GoodRun.from_dict(raw): 1,
    lambda raw, _: Assignment.from_dict(raw): 1,
    lambda raw, _: StagedRelease.from_dict(raw): 1,
    lambda raw, _: StagedBranch.from_dict(raw): 1,
    lambda raw, _: Interface.from_dict(raw): 4,
    lambda raw, path: read_file(
        raw, path / make.RUN / "request.json", lambda run: RunDirectory(run).read_request()
    ): 1,
    lambda raw, path: read_file(
        raw, path / make.RUN / "queries.json", lambda run: read_queries(RunDirectory(run))
    ): 1,
    lambda raw, path: read_file(
        raw, path / "rollback.json", lambda state: Ledger(state).rollback()
    ): 1,
    lambda raw, path: read_file(
        raw, path / "1.json", lambda holds: Holds(holds, None, FakeClock()).active()
    ): 1,
    lambda raw, path: read_file(
        raw, path / KICKS, lambda public: read_noted(public, KICKS, Note)
    ): 1,
}


def problem_of(read: Callable[[], object]) -> str:
    """Return the error of a reader as one line, or an empty text."""
    try:
        read()
    except LocalpuppetError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("read", "number"), READERS.items())
def test_a_reader_names_another_or_missing_schema_number(
    tmp_path: Path, read: Callable[[Any, Path], object], number: int
) -> None:
    for raw, problem in [
        ({"schema": number + 1}, f"has schema {number + 1}; this version reads {number}"),
        ({"schema": str(number)}, f"has no schema number; this version reads {number}"),
        ({}, f"has no schema number; this version reads {number}"),
    ]:
        assert problem in problem_of(lambda raw=raw: read(raw, tmp_path))  # type: ignore[misc]
    assert "schema" not in problem_of(lambda: read({"schema": number}, tmp_path))
