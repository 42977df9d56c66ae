"""The record of an active run: each step is on disk once it is written, and one end."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

import pytest

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import ProcessId
from localpuppet.node.puppet.launching import LaunchedPuppet
from localpuppet.node.runs.options import RunRequest
from localpuppet.node.runs.run import Outcome, RunState, Status
from localpuppet.node.runs.supervisor import OpenRecord
from localpuppet.node.runs.verdict import PuppetEnd, RunVerdict
from tests.doubles.ports import FakeChild
from tests.rigs.recorded import SUPERVISOR, Recorded, in_the_way

OTHER = ProcessId(pid=9, boot_id="b", started=5)
GOOD = RunVerdict(outcome=Outcome.UNCHANGED, reason="")
ENDING = PuppetEnd(code=0, signal=None, stopped=None, report=None, report_problem="")


@pytest.fixture
def site(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def opened(site: Recorded) -> OpenRecord:
    run = site.records.create(site.clock)
    queued = site.status(run, state=RunState.QUEUED, puppet=None)
    record = OpenRecord(run, queued, clock=site.clock)
    record.directory.open(site.request(run), record.status)
    return record


def on_disk(site: Recorded, record: OpenRecord) -> Status:
    site.processes.living.append(OTHER)
    return site.records.status(record.directory)


@dataclass
class SlowRequest:
    """A request that lists the runs while its record is being written."""

    site: Recorded
    runs: list[RunId] = field(default_factory=list)

    def to_dict(self) -> dict[str, Json]:
        (draft,) = self.site.records.directory.iterdir()
        assert draft.is_dir()
        self.runs += self.site.records.ids()
        return {}


def test_a_record_is_visible_only_when_it_is_complete(site: Recorded) -> None:
    """Otherwise, other nodes would read `interrupted` for a moment."""
    run = site.records.create(site.clock)
    request = SlowRequest(site)
    run.open(cast("RunRequest", request), site.status(run))
    assert request.runs == []
    assert site.records.ids() == [run.id]
    assert [path.name for path in site.records.directory.iterdir()] == [run.id]


def test_a_supervisor_that_died_before_its_record_was_complete_leaves_nothing(
    site: Recorded,
) -> None:
    site.ran("app/trunk")
    draft = site.records.directory / ".20261120T140312.482913Z-7f3a"
    draft.mkdir()
    (draft / "request.json").write_text("{")
    assert len(site.records.ids()) == 1
    site.records.settle()
    assert not draft.exists()
    assert len(site.records.ids()) == 1


def test_a_step_is_on_disk_only_after_it_is_written(site: Recorded) -> None:
    record = opened(site)
    record.set_supervisor(OTHER)
    record.set_puppet(LaunchedPuppet(child=FakeChild(), cold_reason="it is old"))
    assert (on_disk(site, record).state, on_disk(site, record).supervisor) == (
        RunState.QUEUED,
        asdict(SUPERVISOR),
    )
    record.directory.write_status(record.status)
    found = on_disk(site, record)
    assert (found.state, found.supervisor) == (RunState.RUNNING, asdict(OTHER))
    assert (found.puppet_started, found.warm, found.cold_reason) == (True, False, "it is old")


def test_the_duration_of_a_run_counts_from_the_creation_of_its_record(site: Recorded) -> None:
    record = opened(site)
    site.clock.advance(7)
    assert record.close(GOOD, ENDING).seconds == 7
    assert on_disk(site, record).outcome is Outcome.UNCHANGED
    assert not record.directory.is_open


def test_after_a_failed_write_another_result_can_be_recorded(site: Recorded) -> None:
    record = opened(site)
    in_the_way(record.directory.status)
    with pytest.raises(StateError):
        record.close(GOOD, ENDING)
    assert record.status.state is RunState.QUEUED
    (record.directory.status / "in the way").rmdir()
    record.directory.status.rmdir()
    record.close(RunVerdict(outcome=Outcome.FAILED, reason="cannot supervise the run"), ENDING)
    assert on_disk(site, record).outcome is Outcome.FAILED
