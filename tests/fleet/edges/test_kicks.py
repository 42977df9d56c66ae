"""Kicks: which nodes they reach; the kicks of a run wait until the run is over."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.base.formats.names import NodeName, RunId
from localpuppet.base.formats.times import show_time
from localpuppet.base.machine.files import write_json
from localpuppet.fleet.bus.bus_limits import MAX_LIFE, MAX_RECEIVERS
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.edges import kicks
from localpuppet.fleet.triggers.cause import Trigger
from localpuppet.fleet.triggers.sending import Outgoing
from localpuppet.fleet.trust.signing import claimed_payload
from localpuppet.node.runs.run import Outcome, RunState, Status
from localpuppet.node.runs.run_records import Records, RunDirectory
from tests.doubles.identities import person
from tests.doubles.inventory import MemoryInventory
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock, FakeLog, FakeProcesses
from tests.fleet.inventory.entries import entry

RUN = RunId.parse("20261120T140000.000000Z-abcd")
NEXT = RunId.parse("20261120T140001.000000Z-abcd")
UUID = "8a8ffb4e-5c0e-4b1e-9d3a-111111111111"
OTHER = "8a8ffb4e-5c0e-4b1e-9d3a-222222222222"
ME = "web01.example.com"
LB, DNS = NodeName("lb01.example.com"), NodeName("dns01.example.com")
CALL = Outgoing(hosts=(LB,), tags=("a",), ttl=180, keyprefix="/p", keyttl=180)


def read(roles: Sequence[str] = (), query: str | None = None) -> kicks.Kick:
    return kicks.Kick.read({"roles": [*roles], "query": query})


def test_a_kick_finds_roles_literally_and_its_written_form_finds_the_same() -> None:
    odd = 'a"b\\c or role=web'
    fleet = MemoryInventory(
        [
            entry("a.example.com", at=1, roles=(odd,)),
            entry("b.example.com", at=1, roles=("web", "dns")),
            entry("c.example.com", at=1, roles=("webx",)),
        ]
    )
    assert read([odd]).question.answer(fleet).names == ("a.example.com",)
    assert read(["web", odd]).question.answer(fleet).names == ("a.example.com", "b.example.com")
    for text in read(["web"]).texts:
        assert read(query=text).question.answer(fleet).names == ("b.example.com",)


@pytest.mark.parametrize(
    ("roles", "query"),
    [([], None), ([], " "), (["web"], "role=web"), (["db\n1"], None), ([""], None)],
)
def test_an_invalid_kick_is_refused(roles: list[str], query: str | None) -> None:
    with pytest.raises(InvalidInputError):
        read(roles, query)


class Rig:
    def __init__(self, state: Path) -> None:
        self.clock = FakeClock()
        self.processes = FakeProcesses()
        self.records = Records(state / "runs", self.processes)
        self.held = kicks.HeldKicks(state, self.records, self.clock)
        self.store = MemoryStore(now=self.clock.monotonic)
        self.log = FakeLog()
        self.away = False
        self.sending = kicks.KickSending(
            self.held,
            signer=person(ME).signer,
            store=self.connected,
            clock=self.clock,
            log=self.log,
        )

    async def connected(self) -> KeyValue:
        if self.away:
            raise UnavailableError("is unreachable", where="bus")
        return MemoryKeyValue(self.store)

    def record(self, run: RunId, *path: str, over: bool = False) -> None:
        """Write the record of a run with a trigger path; without `over`, the run is running."""
        directory = RunDirectory(self.records.directory / run)
        directory.path.mkdir(parents=True)
        write_json(directory.request, {"schema": 1, "causes": {"paths": [list(path)]}})
        status = Status(
            id=run,
            state=RunState.RUNNING,
            release="app/trunk",
            started_at=show_time(self.clock.now()),
            supervisor=asdict(self.processes.me()),
        )
        if over:
            at = show_time(self.clock.now())
            outcome = Outcome.CHANGED
            status = replace(status, state=RunState.FINISHED, outcome=outcome, finished_at=at)
        directory.write_status(status)

    def sent(self) -> dict[str, Trigger]:
        return {
            key: Trigger.parse(claimed_payload(value.entry.value))
            for key, value in self.store.kept.items()
        }


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture
def over(rig: Rig) -> Rig:
    """A node whose run is over, and has released a kick."""
    rig.record(RUN, over=True)
    rig.held.hold(RUN, CALL, uuid=UUID)
    rig.held.release(RUN)
    return rig


async def test_the_kicks_of_a_run_are_one_trigger_a_node_when_it_is_over(rig: Rig) -> None:
    rig.record(RUN, "db01.example.com")
    rig.held.hold(RUN, CALL, uuid=UUID)
    rig.held.hold(RUN, replace(CALL, hosts=(DNS, LB), tags=("b",), ttl=60), uuid=OTHER)
    await rig.sending.step(notified=True)
    assert not rig.store.kept
    assert rig.held.release(RUN)
    await rig.sending.step(notified=False)
    assert not rig.store.kept  # the other nodes could not see the change yet
    await rig.sending.step(notified=True)
    sent = rig.sent()
    assert sorted(sent) == [f"/p/hosts/{node}/{ME}" for node in (DNS, LB)]
    one = sent[f"/p/hosts/{LB}/{ME}"]
    assert (one.uuid, one.tags, one.ttl) == (UUID, ("a", "b"), 180)
    assert one.path == ("db01.example.com", ME)
    assert not rig.held.are_there
    assert [text for _, text in rig.log.lines] == [f"run {RUN} kicks {LB}, {DNS} ({UUID})"]


def test_the_record_of_a_run_names_the_kicked_nodes(rig: Rig) -> None:
    rig.record(RUN)
    assert kicks.kicked_by(rig.records, RUN) == ()
    rig.held.hold(RUN, CALL, uuid=UUID)
    rig.held.hold(RUN, replace(CALL, hosts=(DNS, LB)), uuid=UUID)
    assert kicks.kicked_by(rig.records, RUN) == (LB, DNS)
    (rig.records.directory / RUN / "kicks.json").write_text('{"schema": 1, "nodes": ["*"]}')
    with pytest.raises(StateError, match="is damaged"):
        kicks.kicked_by(rig.records, RUN)


async def test_an_unpublished_entry_delays_kicks_for_a_limited_time(over: Rig) -> None:
    over.clock.advance(kicks.PATIENCE + 1)
    await over.sending.step(notified=False)
    assert len(over.sent()) == 1


async def test_an_outage_loses_no_kick_and_sends_the_same_again(over: Rig) -> None:
    over.away = True
    for _ in range(3):
        await over.sending.step(notified=True)
    assert over.log.lines == [("warning", "kicks wait: bus: is unreachable")]
    over.away = False
    await over.sending.step(notified=True)
    assert [one.uuid for one in over.sent().values()] == [UUID]


async def test_a_kick_of_long_ago_is_dropped_with_a_line(over: Rig) -> None:
    over.clock.advance(kicks.GIVE_UP + 1)
    await over.sending.step(notified=True)
    assert not over.store.kept
    assert not over.held.are_there
    expected = [("warning", f"{LB} is not kicked: the bus was unreachable for too long")]
    assert over.log.lines == expected


async def test_a_loop_drops_the_kicks_of_its_run_only(rig: Rig) -> None:
    rig.record(RUN, str(LB), over=True)
    rig.record(NEXT, over=True)
    for run in (RUN, NEXT):
        rig.held.hold(run, CALL, uuid=UUID)
        rig.held.release(run)
    await rig.sending.step(notified=True)
    assert len(rig.sent()) == 1
    assert any("the loop ends here" in text for _, text in rig.log.lines)


async def test_the_kicks_of_a_run_that_died_are_sent(rig: Rig) -> None:
    rig.record(RUN, over=True)
    rig.held.hold(RUN, CALL, uuid=UUID)
    await rig.sending.step(notified=True)
    assert not rig.store.kept  # its supervisor is about to release them
    rig.clock.advance(kicks.SETTLING + 1)
    await rig.sending.step(notified=True)
    assert len(rig.sent()) == 1


async def test_a_kick_whose_run_is_forgotten_is_dropped_and_logged(rig: Rig) -> None:
    rig.held.hold(RUN, CALL, uuid=UUID)
    rig.held.release(RUN)
    await rig.sending.step(notified=True)
    assert not rig.held.are_there
    (line,) = rig.log.lines
    assert line[1].startswith(f"{LB} is not kicked: ")


async def test_a_file_that_is_damaged_holds_up_no_other(rig: Rig) -> None:
    for run in (RUN, NEXT):
        rig.record(run, over=True)
        rig.held.hold(run, CALL, uuid=UUID)
        rig.held.release(run)
    rig.held._file(RUN).write_text('{"schema": 1}')
    rig.held._file(RUN).with_name("notes.json").write_text("")
    for _ in range(2):
        await rig.sending.step(notified=True)
    assert len(rig.sent()) == 1
    (warning,) = [text for level, text in rig.log.lines if level == "warning"]
    assert warning.startswith("kicks wait: ")
    assert str(RUN) in warning


def test_too_many_receivers_and_a_damaged_file_are_errors(rig: Rig) -> None:
    many = tuple(NodeName(f"n{number}.example.com") for number in range(MAX_RECEIVERS))
    rig.held.hold(RUN, CALL, uuid=UUID)
    with pytest.raises(InvalidInputError, match="the limit is 10000"):
        rig.held.hold(RUN, replace(CALL, hosts=many), uuid=UUID)
    for call in ({"ttl": 0}, {"keyttl": MAX_LIFE + 1}, {"tags": ["a b"]}, {"hosts": (*many, LB)}):
        record = json.loads(rig.held._file(RUN).read_text())
        record["call"] |= call
        write_json(rig.held._file(RUN), record)
        with pytest.raises(StateError, match=rf"is damaged: call.{next(iter(call))}"):
            rig.held.hold(RUN, CALL, uuid=UUID)
        rig.held._file(RUN).unlink()
        rig.held.hold(RUN, CALL, uuid=UUID)
    rig.held._file(RUN).write_text('{"schema": 1}')
    with pytest.raises(StateError, match="is damaged"):
        rig.held.release(RUN)
