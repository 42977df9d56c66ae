"""Following and reading the history of nodes: verified days, over each engine; what waits."""

import asyncio
import json
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import IntegrityError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.bus_limits import MAX_SIGNED_PAYLOAD
from localpuppet.fleet.bus.key_value import KeyValue, RefusedError
from localpuppet.fleet.bus.layout import HISTORY
from localpuppet.fleet.history.history_follower import (
    TOGETHER,
    HistoryBacklog,
    HistoryFollower,
    HistoryPauses,
    read_runs,
)
from localpuppet.fleet.history.history_records import (
    AUDIT,
    DAY,
    RUNS,
    SLOTS,
    AuditRecord,
    HistoryDay,
    HistoryForm,
    HistoryKind,
    RunSummary,
    day_of,
    history_key,
)
from localpuppet.fleet.history.node_history import DayLog
from localpuppet.node.runs.run import Outcome, RefusalKind
from tests.doubles.identities import Person, person, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock, FakeLog
from tests.doubles.simulated_loop import run_simulated
from tests.fleet.make import NODE, a_decision, a_summary
from tests.rigs.engines import Engine
from tests.rigs.fleet import Fleet
from tests.rigs.waiting import wait_until

WEB, DB = person("web01.example.com"), person("db01.example.com")
NOW = FakeClock().now().timestamp()
TODAY = int(NOW // DAY)
PAUSES = HistoryPauses(again=0.05, not_allowed=600)


class _Board:
    """Stores everything, and wakes those that wait for it."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str], RunSummary] = {}
        self.audit: dict[tuple[str, str], AuditRecord] = {}
        self.taken: dict[str, bytes] = {}
        self.days = 0
        self.waiting: list[int | None] = []
        self._news = asyncio.Event()

    async def unknown(self, digests: Mapping[str, bytes]) -> AbstractSet[str]:
        return {key for key, digest in digests.items() if self.taken.get(key) != digest}

    def note_taken(self, key: str, digest: bytes) -> None:
        self.taken[key] = digest
        self._news.set()

    def note_waiting(self, days: int | None) -> None:
        self.waiting.append(days)
        self._news.set()

    async def take_runs(self, days: Sequence[HistoryDay[RunSummary]]) -> None:
        self.days += len(days)
        self.runs |= {(day.node, one.run): one for day in days for one in day.records}

    async def take_audit(self, days: Sequence[HistoryDay[AuditRecord]]) -> None:
        self.days += len(days)
        self.audit |= {(day.node, one.identity): one for day in days for one in day.records}

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._news.wait()
            self._news.clear()


def _day(who: Person, *records: Any, more: int = 0) -> HistoryDay[Any]:
    return HistoryDay(node=NodeName(who.name), day=TODAY + more, records=records, dropped=0)


async def _put(
    kv: KeyValue, who: Person, day: HistoryDay[Any], form: HistoryForm[Any] = RUNS
) -> None:
    await _put_payload(kv, who, day.to_payload(), form, day=day.day, node=who)


async def _put_payload(
    kv: KeyValue,
    signer: Person,
    payload: bytes,
    form: HistoryForm[Any] = RUNS,
    *,
    day: int = TODAY,
    node: Person = WEB,
) -> None:
    key = history_key(NodeName(node.name), form.kind, day)
    await kv.put(key, signer.signer.sign(payload, form.message))


@asynccontextmanager
async def _following(
    board: _Board, kv: KeyValue, trusted: Path, log: FakeLog | None = None
) -> AsyncGenerator[None, None]:
    async def store() -> KeyValue:
        return kv

    follower = HistoryFollower(
        board,
        verifier(trusted, WEB, DB),
        store=store,
        clock=FakeClock(),
        log=log or FakeLog(),
        pauses=PAUSES,
    )
    task = asyncio.create_task(follower.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_follower_has_all_records_after_a_restart(engine: Engine, tmp_path: Path) -> None:
    async with engine.open() as kv:
        for entry in (await kv.list(HISTORY)).entries:  # of a test before
            await kv.remove_if_revision(entry.key, entry.revision)
        first, second = a_summary(NOW - 60), a_summary(NOW)
        board = _Board()
        await _put(kv, WEB, _day(WEB, first))
        await _put(kv, WEB, _day(WEB, a_summary(NOW - DAY), more=-1))
        async with _following(board, kv, tmp_path):
            await board.until(lambda: len(board.runs) == 2)
            await _put(kv, WEB, _day(WEB, first, second))
            await _put(kv, DB, _day(DB, a_decision(NOW)), AUDIT)
            await board.until(lambda: len(board.runs) == 3 and len(board.audit) == 1)
        days = board.days
        await _put(kv, DB, _day(DB, a_summary(NOW)))
        async with _following(board, kv, tmp_path):
            await board.until(lambda: len(board.runs) == 4)
        assert board.days == days + 1  # the values that it had were not verified again
        assert {node for node, _ in board.runs} == {WEB.name, DB.name}


class _BusyBoard(_Board):
    """Stores runs of WEB only when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def take_runs(self, days: Sequence[HistoryDay[RunSummary]]) -> None:
        if any(str(day.node) == WEB.name for day in days):
            await self.go.wait()
        await super().take_runs(days)


async def test_the_newest_days_come_first_and_changes_do_not_wait_for_them(tmp_path: Path) -> None:
    kv, board = MemoryKeyValue(MemoryStore()), _BusyBoard()
    for more in (-3, 0, -7):
        for number in range(TOGETHER):  # each day is more than one batch
            node = f"{HISTORY}web{number:02}.example.com/runs/{(TODAY + more) % 8}"
            await kv.put(node, b"not signed")
        await _put(kv, WEB, _day(WEB, a_summary(NOW + more * DAY), more=more))
    async with _following(board, kv, tmp_path):
        await board.until(lambda: bool(board.waiting))
        await _put(kv, DB, _day(DB, a_summary(NOW)))
        await board.until(lambda: len(board.runs) == 1)
        assert {node for node, _ in board.runs} == {DB.name}
        board.go.set()
        await board.until(lambda: board.waiting[-1] == 0)
    assert [run.at for run in board.runs.values()] == [NOW, NOW, NOW - 3 * DAY, NOW - 7 * DAY]
    assert board.waiting[0] == 3
    assert board.waiting == sorted((days or 0 for days in board.waiting), reverse=True)


async def test_a_node_that_changes_its_day_again_keeps_no_other_waiting(tmp_path: Path) -> None:
    kv, board = MemoryKeyValue(MemoryStore()), _BusyBoard()
    async with _following(board, kv, tmp_path):
        await board.until(lambda: bool(board.waiting))
        board.go.set()
        await _put(kv, WEB, _day(WEB, a_summary(NOW)))
        await board.until(lambda: len(board.runs) == 1)
        board.go.clear()
        for number in range(1, 4):
            await _put(kv, WEB, _day(WEB, a_summary(NOW + number)))
        await _put(kv, DB, _day(DB, a_summary(NOW)))
        await board.until(lambda: (DB.name, a_summary(NOW).run) in board.runs)
        board.go.set()
        await board.until(lambda: board.waiting[-1] == 0)
    assert {one.at for one in board.runs.values()} >= {NOW, NOW + 3}


def _many() -> bytes:
    day = json.loads(zlib.decompress(_day(WEB, a_summary(NOW)).to_payload()))
    return zlib.compress(json.dumps({**day, "records": [{}] * 100_000}).encode())


async def _hostile(kv: KeyValue) -> None:
    """Write what a compromised node, or one with write access to too many keys, may write."""
    good = _day(WEB, a_summary(NOW)).to_payload()
    prefix = f"{HISTORY}{WEB.name}/runs/"
    await _put_payload(kv, DB, good)
    await _put_payload(kv, WEB, good, day=TODAY + 1)
    await _put_payload(kv, WEB, b"\0" * 1000, day=TODAY + 2)
    await _put_payload(kv, WEB, zlib.compress(b" " * 50_000_000), day=TODAY + 3)
    await _put_payload(kv, WEB, _many(), day=TODAY + 4)
    future = _day(WEB, a_summary(NOW + 7 * DAY), more=7)
    await _put_payload(kv, WEB, future.to_payload(), day=TODAY + 7)
    await _put_payload(kv, WEB, _day(DB, a_summary(NOW)).to_payload(), day=TODAY + 5)
    await kv.put(f"{prefix}9", b"not signed")
    await kv.put(f"{HISTORY}{WEB.name}/secrets/1", WEB.signer.sign(good, RUNS.message))
    await kv.put(f"{HISTORY}{WEB.name}/audit/{TODAY % 8}", WEB.signer.sign(good, RUNS.message))
    await kv.put(f"{HISTORY}_/runs/1", WEB.signer.sign(good, RUNS.message))
    await _put_payload(kv, WEB, b"x" * MAX_SIGNED_PAYLOAD, day=TODAY + 6)


async def test_hostile_values_are_skipped_and_logged(tmp_path: Path) -> None:
    kv, board, log = MemoryKeyValue(MemoryStore()), _Board(), FakeLog()
    await _hostile(kv)
    await _put(kv, DB, _day(DB, a_summary(NOW)))
    async with _following(board, kv, tmp_path, log):
        await board.until(lambda: len(board.runs) == 1)
        await _put(kv, DB, _day(DB, a_summary(NOW), a_summary(NOW + 1)))
        await board.until(lambda: len(board.runs) == 2)
    assert {node for node, _ in board.runs} == {DB.name}
    assert len(log.lines) >= 5
    assert all(line.startswith("rejected the history of ") for _, line in log.lines)


async def test_a_rejection_is_logged_once_for_a_node_and_reason(tmp_path: Path) -> None:
    kv, board, log = MemoryKeyValue(MemoryStore()), _Board(), FakeLog()
    async with _following(board, kv, tmp_path, log):
        for number in range(5):
            await kv.put(f"{HISTORY}{WEB.name}/runs/1", b"not signed %d" % number)
            await _put(kv, DB, _day(DB, a_summary(NOW + number)))
            await board.until(lambda: (DB.name, a_summary(NOW + number).run) in board.runs)  # noqa: B023
    ((_, line),) = log.lines
    assert line.startswith(
        f"rejected the history of {WEB.name}: signature: not a signed message: it"
    )


def test_an_outage_is_logged_once_and_a_denial_ends_the_attempts_for_long(tmp_path: Path) -> None:
    calls: list[int] = []
    log, board = FakeLog(), _Board()

    async def store() -> KeyValue:
        calls.append(1)
        if len(calls) < 20:
            assert not board.waiting
            raise UnavailableError("is unreachable", where="bus")
        raise RefusedError("denied", where="bus")

    async def follow() -> None:
        follower = HistoryFollower(
            board, verifier(tmp_path, WEB), store=store, clock=FakeClock(), log=log, pauses=PAUSES
        )
        task = asyncio.create_task(follower.run())
        await asyncio.sleep(500)
        task.cancel()

    run_simulated(follow())
    assert (len(calls), board.waiting) == (20, [None])
    reasons = [line.partition(": ")[2] for _, line in log.lines]
    assert reasons == ["bus: is unreachable", "bus: denied"]


ALL = 10 * SLOTS


def _key(age: int, kind: HistoryKind = HistoryKind.RUNS, node: NodeName = NODE) -> str:
    return history_key(node, kind, TODAY - age)


def test_the_newest_days_of_all_nodes_come_first() -> None:
    backlog = HistoryBacklog()
    other = NodeName("db01.example")
    for age in (3, 0, 7, 1, 3):
        for node in (NODE, other):
            for kind in HistoryKind:
                assert backlog.add(_key(age, kind, node))
    assert backlog.days == 4
    found = backlog.newest(TODAY, ALL)
    assert len(found) == len(set(found)) == 16
    seen = [key.rpartition("/")[2] for key in found]
    assert seen == [f"{(TODAY - age) % SLOTS}" for age in (0, 1, 3, 7) for _ in range(4)]
    assert backlog.newest(TODAY, 5) == found[:5]
    for key in found[:4]:
        backlog.discard(key)
    assert backlog.days == 3
    assert backlog.newest(TODAY, ALL) == found[4:]


@pytest.mark.parametrize(
    "key",
    [
        *(f"{HISTORY}{NODE}/runs/{slot}" for slot in ("8", "07", "x", "", "1/2")),
        *(f"{HISTORY}{NODE}/secrets/1", f"{HISTORY}_/runs/1", f"/localpuppet/presence/{NODE}"),
    ],
)
def test_other_keys_do_not_wait(key: str) -> None:
    backlog = HistoryBacklog()
    assert not backlog.add(key)
    backlog.discard(key)
    assert backlog.days == 0


def test_the_number_of_waiting_keys_is_limited() -> None:
    backlog = HistoryBacklog(most=2)
    assert [backlog.add(_key(age)) for age in (0, 1, 2)] == [True, True, False]
    backlog.discard(_key(0))
    assert backlog.add(_key(2))


WEB_NODE = NodeName(WEB.name)


async def put_runs(kv: MemoryKeyValue, signer: Person, *records: RunSummary) -> None:
    day = day_of(records[0].at)
    payload = HistoryDay(node=WEB_NODE, day=day, records=records, dropped=0).to_payload()
    await kv.put(history_key(WEB_NODE, RUNS.kind, day), signer.signer.sign(payload, RUNS.message))


async def test_the_runs_of_all_days_are_read_the_newest_first(tmp_path: Path) -> None:
    kv = MemoryKeyValue(MemoryStore())
    assert await read_runs(kv, WEB_NODE, verifier(tmp_path, WEB), now=NOW) == ([], "")
    old, first, second = a_summary(NOW - 3 * DAY), a_summary(NOW - 60), a_summary(NOW)
    await put_runs(kv, WEB, old)
    await put_runs(kv, WEB, first, second)
    assert await read_runs(kv, WEB_NODE, verifier(tmp_path, WEB), now=NOW) == (
        [second, first, old],
        "",
    )


async def test_what_another_node_signed_is_rejected(tmp_path: Path) -> None:
    kv = MemoryKeyValue(MemoryStore())
    await put_runs(kv, DB, a_summary(NOW))
    with pytest.raises(IntegrityError, match=DB.name):
        await read_runs(kv, WEB_NODE, verifier(tmp_path, WEB, DB), now=NOW)


async def test_a_reinstalled_node_has_the_runs_since_its_new_key(tmp_path: Path) -> None:
    kv, before = MemoryKeyValue(MemoryStore()), person(WEB.name)
    last = a_summary(NOW - DAY)
    await put_runs(kv, before, a_summary(NOW - 2 * DAY))
    await put_runs(kv, WEB, last)
    runs, problem = await read_runs(kv, WEB_NODE, verifier(tmp_path, WEB), now=NOW)
    assert runs == [last]
    assert problem.startswith("days before are not read: ")
    await put_runs(kv, before, a_summary(NOW))
    with pytest.raises(IntegrityError):  # unknown, and not how it was before
        await read_runs(kv, WEB_NODE, verifier(tmp_path, WEB), now=NOW)


def test_history_shows_the_runs_of_another_node(any_fleet: Fleet) -> None:
    a, b = any_fleet.add("a", "b")
    now = time.time()
    failed = a_summary(now - 60, outcome=Outcome.FAILED, reason="File[/etc/motd]: denied")
    refused = a_summary(now, outcome=None, refusal=RefusalKind("on_hold"), times=3)
    for summary in (failed, refused):
        DayLog(b.root / "var", RUNS).append(NodeName(b.name), summary)
    any_fleet.start()

    def listed() -> bool:
        return a.run("history", b.name).code == 0

    wait_until(listed, lambda: a.run("history", b.name).err)
    shown = a.run("history", b.name, "-n", "5")
    assert f"{b.name}: 2 runs on the bus" in shown.out
    (row,) = (line for line in shown.out.splitlines() if failed.run in line)
    assert ("failed" in row, "File[/etc/motd]: denied" in row) == (True, True)
    assert ("3 times" in shown.out, refused.run in shown.out) == (True, False)
    trusted = a.root / "trusted"
    (trusted / "gone.example.com.pem").write_bytes((trusted / f"{b.name}.pem").read_bytes())
    both = a.run("history", b.name, "gone.example.com", "--json", code=1)
    (first, second) = both.json["histories"][b.name]
    assert (first["refusal"], second["outcome"]) == ("on_hold", "failed")
    assert "no run of it" in both.json["problems"]["gone.example.com"]
    assert "bus" in a.run("history", "gone.example.com").err
