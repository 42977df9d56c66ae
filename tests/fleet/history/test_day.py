"""A day of history: its limits, damaged and hostile ones, and the days on a node's disk."""

import asyncio
import json
import stat
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.bus_limits import (
    MAX_DAY_RECORDS,
    MAX_PACKED_DAY,
    MAX_PACKED_SUMMARY,
    MAX_UNPACKED_DAY,
)
from localpuppet.fleet.history.history_records import (
    AUDIT,
    DAY,
    RUNS,
    HistoryDay,
    HistoryKind,
    RunSummary,
    day_of,
    history_key,
    packed_size,
    parse_day,
)
from localpuppet.fleet.history.node_history import DayLog
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.node.runs.run import Outcome
from tests.fleet.make import NODE, TODAY, a_day, a_decision, a_resource, a_summary, noon


def test_days_of_runs_and_audit_records_are_read_as_they_were_written() -> None:
    changed = a_summary(noon(), outcome=Outcome.CHANGED, resources=(a_resource(1), a_resource(2)))
    day = a_day(changed, a_summary(noon(30)))
    assert parse_day(day.to_payload(), RUNS) == day
    audited = HistoryDay(node=NODE, day=TODAY, records=(a_decision(noon()),), dropped=3)
    assert parse_day(audited.to_payload(), AUDIT) == audited


def test_a_day_begins_at_midnight_utc_and_its_key_is_used_again_after_eight() -> None:
    keys = [history_key(NODE, HistoryKind.RUNS, TODAY + more) for more in range(9)]
    assert len(set(keys)) == 8
    assert keys[8] == keys[0] == f"/localpuppet/history/{NODE}/runs/{TODAY % 8}"
    assert day_of(TODAY * 86400) == TODAY
    assert day_of(TODAY * 86400 - 0.001) == TODAY - 1


def test_a_record_with_a_known_identity_replaces_the_earlier_one() -> None:
    first = a_summary(noon(), times=1)
    day = a_day(first).with_records([a_summary(noon(1)), a_summary(noon(), times=2)])
    assert [record.times for record in day.records] == [2, 1]


def test_a_full_day_drops_unchanged_runs_first_and_counts_them() -> None:
    changed = [a_summary(noon(minute), outcome=Outcome.CHANGED) for minute in (0, 1)]
    unchanged = [a_summary(noon(2 + minute)) for minute in range(MAX_DAY_RECORDS)]
    day = parse_day(a_day(*changed, *unchanged).to_payload(), RUNS)
    assert day.records == (*changed, *unchanged[2:])
    assert day.dropped == 2


def test_a_day_of_large_records_drops_the_oldest_until_it_fits() -> None:
    random = Random(26)  # noqa: S311 # the same titles each time
    large = [_large(random, minute) for minute in range(40)]
    payload = a_day(*large).to_payload()
    day = parse_day(payload, RUNS)
    assert len(payload) <= MAX_PACKED_DAY
    assert 0 < len(day.records) < 40
    assert list(day.records) == large[-len(day.records) :]
    assert day.dropped == 40 - len(day.records)


def test_a_day_has_no_more_values_than_readers_accept() -> None:
    alike = tuple(a_resource(1) for _ in range(100))
    records = [a_summary(noon(minute), resources=alike) for minute in range(80)]
    day = parse_day(a_day(*records).to_payload(), RUNS)
    assert 40 < len(day.records) < 80
    assert day.dropped == 80 - len(day.records)


def _large(random: Random, minute: int) -> Any:
    resources = [a_resource(1, title=f"/{random.randbytes(30).hex()}") for _ in range(100)]
    return a_summary(noon(minute), outcome=Outcome.CHANGED).within_limits(resources)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"not packed", "not packed with zlib"),
        (zlib.compress(b"[]"), "not a JSON object"),
        (zlib.compress(b'{"schema": 2}'), "has schema 2"),
        (zlib.compress(b"[" * 100_000), "nested too deep"),
        (zlib.compress(b" " * (MAX_UNPACKED_DAY + 1)), "come out of"),
        (b"\0" * (MAX_PACKED_DAY + 1), "larger than"),
        (zlib.compress(b'{"records": [' + b"0," * 30_000 + b"0]}"), "has no schema number"),
        (zlib.compress(b'{"records": [' + b"0," * 40_000 + b"0]}"), "more than 40000 values"),
    ],
)
def test_invalid_bytes_are_an_error_in_a_single_line(payload: bytes, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem) as refused:
        parse_day(payload, RUNS)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"records": "many"}, "records"),
        ({"records": [0] * (MAX_DAY_RECORDS + 1)}, f"has {MAX_DAY_RECORDS + 1} elements"),
        ({"records": [{"run": "x"}]}, "is missing"),
        ({"day": TODAY + 1}, "another day"),
        ({"day": -1}, "day"),
        ({"node": "no node"}, "node"),
        ({"more": 1}, "more"),
    ],
)
def test_a_day_of_another_form_is_rejected(change: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        parse_day(_changed(a_day(a_summary(noon())), change), RUNS)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"reason": "a" * 257}, "no line of up to 256"),
        ({"reason": "\x1b[31mred"}, "no line of up to 256"),
        ({"counts": {"total": -1}}, "counts"),
        ({"times": 10**9}, "not from 0 to"),
        ({"times": True}, "integer"),
        ({"outcome": None}, "neither"),
        ({"outcome": "fine"}, "Outcome"),
        ({"started_at": 1e300}, "before it started"),
        ({"run": "../../etc"}, "not a run id"),
    ],
)
def test_a_record_of_another_form_is_rejected(change: Mapping[str, Any], problem: str) -> None:
    raw = json.loads(zlib.decompress(a_day(a_summary(noon())).to_payload()))
    raw["records"][0].update(change)
    payload = zlib.compress(json.dumps(raw).encode())
    with pytest.raises(InvalidInputError, match=problem):
        parse_day(payload, RUNS)


def test_a_day_with_one_run_twice_is_rejected() -> None:
    run = a_summary(noon())
    with pytest.raises(InvalidInputError, match="twice"):
        parse_day(a_day(run, run).to_payload(), RUNS)


def _changed(day: HistoryDay[Any], change: Mapping[str, Any]) -> bytes:
    raw = json.loads(zlib.decompress(day.to_payload()))
    return zlib.compress(json.dumps({**raw, **change}).encode())


def test_a_summary_lists_a_hundred_resources_those_that_failed_first() -> None:
    skipped = [a_resource(n, status=ResourceResult.SKIPPED) for n in range(150)]
    changed = [a_resource(n) for n in range(20)]
    corrective = [a_resource(n, corrective_change=True) for n in range(3)]
    failed = [a_resource(n, status=ResourceResult.FAILED) for n in range(2)]
    found = a_summary(noon(), outcome=Outcome.FAILED).within_limits(
        [*skipped, *changed, *corrective, *failed]
    )
    assert found.resources == (*failed, *corrective, *changed, *skipped[:75])
    assert found.more == 75


def test_a_summary_of_long_titles_lists_fewer_resources() -> None:
    random = Random(26)  # noqa: S311 # the same titles each time
    long = [a_resource(1, title=f"/{random.randbytes(75).hex()}") for _ in range(100)]
    found = a_summary(noon()).within_limits(long)
    assert packed_size(found) <= MAX_PACKED_SUMMARY
    assert 50 < len(found.resources) < 100
    assert len(found.resources) + found.more == 100


def test_a_summary_without_a_limit_cannot_be_made() -> None:
    with pytest.raises(InvalidInputError, match="100 resources"):
        a_summary(noon(), resources=tuple(map(a_resource, range(101))))
    with pytest.raises(InvalidInputError, match="no summary"):
        a_resource(1, status=ResourceResult.UNCHANGED)


@pytest.fixture
def log(tmp_path: Path) -> DayLog[RunSummary]:
    return DayLog(tmp_path, RUNS)


def _records(log: DayLog[RunSummary], day: int = TODAY) -> tuple[RunSummary, ...]:
    payload = log.payload(day)
    return () if payload is None else parse_day(payload, RUNS).records


def test_each_record_is_in_the_file_of_its_day_that_root_reads(log: DayLog[RunSummary]) -> None:
    yesterday, today = a_summary(noon() - DAY), a_summary(noon())
    log.append(NODE, replace(today, times=7))
    log.append(NODE, today)  # a repeated record is replaced
    log.append(NODE, yesterday)
    assert log.days() == [TODAY - 1, TODAY]
    assert (_records(log), _records(log, TODAY - 1)) == ((today,), (yesterday,))
    assert stat.S_IMODE((log.directory / str(TODAY)).stat().st_mode) == 0o600
    assert stat.S_IMODE(log.directory.stat().st_mode) == 0o700


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
