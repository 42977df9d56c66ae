"""The record of a run: atomic writes, and a true status, also from a damaged record."""

import json
import threading
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import write_json
from localpuppet.base.machine.ports import ProcessId
from localpuppet.node.puppet.launching import LaunchedPuppet
from localpuppet.node.runs.options import RunRequest
from localpuppet.node.runs.run import FailureStreak, Outcome, RunState, Status
from localpuppet.node.runs.run_records import Records
from localpuppet.node.runs.supervisor import OpenRecord
from localpuppet.node.runs.verdict import PuppetEnd, RunVerdict
from tests.doubles.ports import FakeChild, FakeProcesses
from tests.rigs.recorded import PUPPET, SUPERVISOR, Recorded, in_the_way


@pytest.fixture
def site(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def test_a_node_without_runs_has_no_ids_no_history_and_no_newest_run(site: Recorded) -> None:
    assert (site.records.ids(), list(site.records.history())) == ([], [])
    with pytest.raises(InvalidInputError, match="this node has no run yet"):
        site.records.get(None)


def test_ids_are_sorted_newest_first_and_other_names_are_ignored(site: Recorded) -> None:
    made = []
    for _ in range(3):
        made.append(site.begin().id)
        site.clock.advance(1)
    for name in ("lost+found", "20261120", "20261320T140000.000000Z-abcd", ".tmp"):
        (site.records.directory / name).mkdir()
    assert site.records.ids() == made[::-1]
    assert [status.id for status in site.records.history()] == made[::-1]


def test_a_new_id_is_newer_than_all_others_even_if_the_clock_was_set_back(site: Recorded) -> None:
    first = site.begin()
    site.clock.advance(-3600)
    second = site.begin()
    third = site.begin()
    assert site.records.ids() == [third.id, second.id, first.id]
    assert second.id.time == first.id.time + timedelta(microseconds=1)


def test_an_unreadable_directory_of_runs_is_an_error_and_not_empty(site: Recorded) -> None:
    site.records.directory.write_text("a file")
    with pytest.raises(StateError):
        site.records.ids()


def test_a_record_that_cannot_be_opened_leaves_no_files(site: Recorded) -> None:
    other = site.records.create(site.clock)
    other.path.write_text("a file of the same name")
    with pytest.raises(StateError):
        other.open(site.request(other), site.status(other))
    assert other.path.read_text() == "a file of the same name"
    assert [path.name for path in site.records.directory.iterdir()] == [other.id]


def test_a_reader_gets_the_status_before_or_after_a_write_and_never_a_part(site: Recorded) -> None:
    run = site.begin()
    seen: set[int] = set()
    over = threading.Event()
    looked = threading.Event()
    problems: list[BaseException] = []

    def read() -> None:
        while not over.is_set():
            try:
                status = Status.from_dict(json.loads(run.status.read_text()))
                assert len(status.reason) % 1000 == 0
            except BaseException as error:  # noqa: BLE001 - the test reports any error
                problems.append(error)
                break
            seen.add(len(status.reason))
            looked.set()
        looked.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(100):
            run.write_status(site.status(run, reason="x" * 1000 * number))
            looked.wait()
            looked.clear()
            if problems:
                break
    finally:
        over.set()
        reader.join()
    assert not problems
    assert len(seen) > 10, "the reader did read meanwhile"


def test_a_status_that_cannot_be_written_leaves_no_temporary_file(site: Recorded) -> None:
    run = site.begin()
    in_the_way(run.status)
    before = sorted(run.path.iterdir())
    with pytest.raises(StateError):
        run.write_status(site.status(run, reason="new"))
    assert sorted(run.path.iterdir()) == before


def test_closing_a_record_frees_the_reserve_before_the_write(site: Recorded) -> None:
    run = site.begin()
    run.public.mkdir()
    (run.public / "last_run_summary.yaml").touch()
    site.finish(run)
    assert (run.is_open, run.public.exists()) == (False, True)
    run.clear()
    assert not run.public.exists()
    assert site.records.status(run).outcome is Outcome.CHANGED
    other = site.begin()
    in_the_way(other.status)
    with pytest.raises(StateError):
        site.finish(other)
    assert not other.is_open, "the reserve is freed even if the write fails"


def test_the_status_of_a_run_with_a_live_supervisor_is_that_of_its_record(site: Recorded) -> None:
    run = site.begin()
    assert site.records.status(run) == site.status(run)
    site.finish(run)
    site.supervisors_die()
    assert site.records.status(run).outcome is Outcome.CHANGED, "a closed record does not change"


def test_a_run_is_found_by_its_cause(site: Recorded) -> None:
    """Unreadable records, and records without causes, are skipped."""
    caused = {"causes": [{"sender": "choria=alice/rollout/1", "uuid": "u"}], "count": 1}
    run = site.begin()
    write_json(run.request, site.request(run, causes=caused).to_dict())
    other = site.begin()
    other.request.write_text("[")
    site.begin()
    assert site.records.caused_by("choria=alice/rollout/1", "v") is None
    found = site.records.caused_by("choria=alice/rollout/1", "u")
    assert found is not None
    assert (found.id, found.state) == (run.id, RunState.RUNNING)


def test_a_run_whose_supervisor_died_reads_interrupted(site: Recorded) -> None:
    run = site.begin(noop=True)
    site.supervisors_die()
    found = site.records.status(run)
    reason = "the supervisor died before the run ended (killed, or a reboot)"
    expected = replace(site.status(run, noop=True), state=RunState.FINISHED, reason=reason)
    assert found == replace(expected, outcome=Outcome.INTERRUPTED)
    assert not site.records.orphaned(found)
    assert json.loads(run.status.read_text())["state"] == "running", (
        "reading does not change the file"
    )


def test_the_reason_names_the_pid_of_a_puppet_without_its_supervisor(site: Recorded) -> None:
    run = site.begin()
    site.processes.living.append(PUPPET)
    assert site.records.status(run).state is RunState.RUNNING
    site.supervisors_die()
    found = site.records.status(run)
    assert found.outcome is Outcome.INTERRUPTED
    assert found.reason == ("the supervisor died; Puppet (pid 8) still runs, unsupervised")
    assert site.records.orphaned(found)


def test_a_record_that_is_closed_during_the_check_is_not_interrupted(site: Recorded) -> None:
    class ClosedMeanwhile(FakeProcesses):
        """Reports the end of a supervisor that has just closed the record."""

        def alive(self, process: ProcessId) -> bool:
            if process == SUPERVISOR:
                site.finish(run)
            return False

    run = site.begin()
    records = Records(site.records.directory, ClosedMeanwhile())
    assert records.status(run).outcome is Outcome.CHANGED


def test_the_failure_streak_is_computed_again_only_after_another_run(site: Recorded) -> None:
    good = site.finish(site.begin())
    assert site.records.streak(site.records.status(good)) == FailureStreak()
    failed = [site.finish(site.begin(), Outcome.FAILED) for _ in range(2)]
    last = site.records.status(failed[1])
    assert site.records.streak(last).runs == 2
    failed[0].status.unlink()
    good.status.unlink()  # reads 'interrupted' from now on
    assert site.records.streak(last).runs == 2
    newest = site.records.status(site.finish(site.begin(), Outcome.FAILED))
    assert site.records.streak(newest).runs == 4


def test_a_damaged_record_reads_interrupted_and_does_not_affect_others(site: Recorded) -> None:
    good = site.finish(site.begin())
    run = site.finish(site.begin())
    whole = run.status.read_bytes()
    cut = (whole[:length] for length in range(len(whole.rstrip())))
    for data in (*cut, b"\xff\xfe", b"[]", b'{"schema": 2}', b"[" * 100_000):
        run.status.write_bytes(data)
        found = site.records.status(run)
        assert (found.outcome, found.release, found.id) == (Outcome.INTERRUPTED, "?", run.id)
        assert found.reason.startswith("status.json ")
    run.status.unlink()
    assert site.records.status(run).outcome is Outcome.INTERRUPTED
    assert [status.id for status in site.records.history()] == [run.id, good.id]


@pytest.mark.parametrize(
    "change",
    [
        *({"release": 7}, {"noop": "no"}, {"seconds": "long"}, {"started_at": "yesterday"}),
        *({"started_at": "2026-11-20T14:00:00"}, {"supervisor": [1]}),
        *({"resources": {"total": "nine"}}, {"schema": 2}, {"id": "../../etc"}),
        *({"outcome": "changed"}, {"state": "finished"}, {"state": "done", "outcome": "changed"}),
        *({"state": "finished", "outcome": "perfect"}, {"unknown": 1}),
    ],
)
def test_an_invalid_field_reads_interrupted(site: Recorded, change: dict[str, object]) -> None:
    run = site.begin()
    run.status.write_text(json.dumps({**json.loads(run.status.read_text()), **change}))
    found = site.records.status(run)
    assert (found.outcome, found.release) == (Outcome.INTERRUPTED, "?")


@pytest.mark.parametrize("supervisor", [None, {}, {"pid": "7"}, {"pid": 7}, {**asdict(PUPPET)}])
def test_a_record_without_a_valid_supervisor_reads_interrupted(
    site: Recorded, supervisor: dict[str, object] | None
) -> None:
    run = site.begin(supervisor=supervisor)
    assert site.records.status(run).outcome is Outcome.INTERRUPTED


OTHER = ProcessId(pid=9, boot_id="b", started=5)
GOOD = RunVerdict(outcome=Outcome.UNCHANGED, reason="")
ENDING = PuppetEnd(code=0, signal=None, stopped=None, report=None, report_problem="")


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
        return {"user": "alice"}


def test_a_record_is_visible_only_when_it_is_complete(site: Recorded) -> None:
    """Otherwise, other nodes would read `interrupted` for a moment."""
    run = site.records.create(site.clock)
    assert (site.records.ids(), run.is_open) == ([], False)
    request = SlowRequest(site)
    run.open(cast("RunRequest", request), site.status(run))
    assert request.runs == []
    assert (site.records.ids(), run.is_open) == ([run.id], True)
    assert [path.name for path in site.records.directory.iterdir()] == [run.id]
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert json.loads(run.request.read_text()) == {"user": "alice"}


def test_a_supervisor_that_died_before_its_record_leaves_nothing(site: Recorded) -> None:
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
