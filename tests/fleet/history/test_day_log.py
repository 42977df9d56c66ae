"""The history on a node's disk."""

import asyncio
import stat
from pathlib import Path

import pytest

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.history.day import AUDIT, DAY, RUNS, parse_day
from localpuppet.fleet.history.node_history import DayLog
from localpuppet.fleet.history.run_summary import RunSummary
from tests.fleet.make import NODE, TODAY, a_decision, a_summary, noon


@pytest.fixture
def log(tmp_path: Path) -> DayLog[RunSummary]:
    return DayLog(tmp_path, RUNS)


def _records(log: DayLog[RunSummary], day: int = TODAY) -> tuple[RunSummary, ...]:
    payload = log.payload(day)
    return () if payload is None else parse_day(payload, RUNS).records


def test_each_record_is_in_the_file_of_its_day_which_only_root_reads(
    log: DayLog[RunSummary],
) -> None:
    yesterday, today = a_summary(noon() - DAY), a_summary(noon())
    log.append(NODE, today)
    log.append(NODE, yesterday)

    assert log.days() == [TODAY - 1, TODAY]
    assert (_records(log), _records(log, TODAY - 1)) == ((today,), (yesterday,))
    file = log.directory / str(TODAY)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.directory.stat().st_mode) == 0o700


def test_a_repeated_record_is_replaced(log: DayLog[RunSummary]) -> None:
    log.append(NODE, a_summary(noon()))
    log.append(NODE, a_summary(noon(), times=2))

    assert [record.times for record in _records(log)] == [2]


def test_what_a_killed_writer_left_is_removed(log: DayLog[RunSummary]) -> None:
    log.append(NODE, a_summary(noon()))
    (log.directory / f".{TODAY - 1}.0123456789ab").touch()
    log.append(NODE, a_summary(noon(1)))

    assert [path.name for path in log.directory.iterdir()] == [str(TODAY)]


def test_a_damaged_day_begins_again(log: DayLog[RunSummary]) -> None:
    log.append(NODE, a_summary(noon()))
    (log.directory / str(TODAY)).write_bytes(b"damaged")
    log.append(NODE, a_summary(noon(1)))

    assert _records(log) == (a_summary(noon(1)),)


def test_a_node_with_another_name_publishes_its_own_name(log: DayLog[RunSummary]) -> None:
    log.append(NODE, a_summary(noon()))
    log.append(NodeName("db01.example"), a_summary(noon(1)))

    payload = log.payload(TODAY)
    assert payload is not None
    day = parse_day(payload, RUNS)
    assert (day.node, len(day.records)) == ("db01.example", 2)


def test_runs_are_kept_for_eight_days_and_decisions_for_ninety(tmp_path: Path) -> None:
    runs, audit = DayLog(tmp_path, RUNS), DayLog(tmp_path, AUDIT)
    for more in range(92):
        runs.append(NODE, a_summary(noon() + more * DAY))
        audit.append(NODE, a_decision(noon() + more * DAY))

    assert runs.days() == list(range(TODAY + 84, TODAY + 92))
    assert audit.days() == list(range(TODAY + 2, TODAY + 92))


def test_a_clock_that_jumps_ahead_for_one_run_removes_one_day(log: DayLog[RunSummary]) -> None:
    for more in range(8):
        log.append(NODE, a_summary(noon() + more * DAY))
    log.append(NODE, a_summary(noon() + 30_000 * DAY))
    log.append(NODE, a_summary(noon() + 8 * DAY))

    assert log.days() == list(range(TODAY + 1, TODAY + 9))


def test_a_log_begins_once_with_the_runs_that_the_node_has(log: DayLog[RunSummary]) -> None:
    log.begin(NODE, [a_summary(noon()), a_summary(noon() - DAY)])
    log.begin(NODE, [a_summary(noon(5))])

    assert log.is_begun
    assert log.days() == [TODAY - 1, TODAY]
    assert _records(log) == (a_summary(noon()),)


def test_several_writers_at_once_lose_no_record(tmp_path: Path) -> None:
    async def write() -> None:
        await asyncio.gather(
            *(
                asyncio.to_thread(DayLog(tmp_path, RUNS).append, NODE, a_summary(noon(minute)))
                for minute in range(8)
            )
        )

    asyncio.run(write())

    assert len(_records(DayLog(tmp_path, RUNS))) == 8
