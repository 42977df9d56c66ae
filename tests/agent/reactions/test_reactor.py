"""The actor, with an inventory in memory and real records."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from localpuppet.agent.reactions import pace, reactor
from localpuppet.agent.reactions.ended_runs import EndedRuns
from localpuppet.agent.reactions.memory import ReactionMemory
from localpuppet.agent.reactions.questions import Questions
from localpuppet.agent.reactions.reactor import Reactor, World
from localpuppet.errors import StateError
from localpuppet.formats.names import NodeName
from localpuppet.inventory.arrived import Arrived
from localpuppet.inventory.query.functions import Question
from localpuppet.inventory.view import View
from localpuppet.runs.query_record import RecordedQuery, note_query
from localpuppet.runs.records import Records, RunDirectory
from localpuppet.runs.run import Outcome, State, Status
from localpuppet.triggers.cause import Cause
from tests.doubles.identities import person
from tests.doubles.ports import FakeClock, FakeLog, FakeProcesses
from tests.inventory.entries import entry, signed

WEB = person("web01.example.com")
ME = NodeName("lb01.example.com")


SERVERS = Question.of("servers_with_role", ["web"])


class Rig:
    """A node with records, a view and a reactor; its host only notes what it is handed."""

    me = ME

    def __init__(self, directory: Path) -> None:
        self.clock, self.log = FakeClock(), FakeLog()
        self.is_running = False
        self.causes: list[Cause] = []
        self.full = False
        self.view = View(directory / "view.sqlite", now=self.now)
        self.records = Records(directory / "runs", FakeProcesses())
        self.sources = [Questions(self.view, self.records, now=self.now, max_stale=900)]
        self.directory = directory
        self.seen, self.changed = asyncio.Event(), asyncio.Event()
        self.revision = self.said = 0

    def now(self) -> float:
        return self.clock.now().timestamp()

    def owes(self, causes: Iterable[str]) -> bool:
        return False

    def react(self, causes: Sequence[Cause]) -> None:
        if self.full:
            raise StateError("the disk is full", where="inbox")
        self.causes += [one for one in causes if one.id not in {known.id for known in self.causes}]

    def reactor(self) -> Reactor:
        world = World(
            host=self,
            runs=EndedRuns(self.records, self.sources),
            sources=self.sources,
            peers=self.view,
            refusal=lambda _: None,
        )
        return Reactor(world, ReactionMemory(self.directory), clock=self.clock, log=self.log)

    def says(self, address: str) -> None:
        self.revision, self.said = self.revision + 1, self.said + 1
        said = entry(
            WEB.name,
            at=self.now() + self.said,
            facts={"networking": {"ip": address}},
            roles=("web",),
            paths=((),),
        )
        arrived = Arrived(
            node=WEB.name, token=signed(WEB, said), found=said, revision=self.revision
        )
        self.view.take([arrived], revision=self.revision)
        self.view.note(current=self.now())
        self.seen.set()

    def begin(
        self, number: int, *, asks: bool = True, question: Question = SERVERS
    ) -> RunDirectory:
        """Make a run that is on, and has asked."""
        run = RunDirectory(self.records.directory / f"20261120T14000{number}.000000Z-abcd")
        run.path.mkdir(parents=True)
        mine = asdict(FakeProcesses().me())
        run.write_status(self.status(run, State.RUNNING, None, supervisor=mine))
        if asks:
            reply = question.answer(self.view)
            note_query(
                run,
                RecordedQuery(
                    function=question.function,
                    arguments=question.arguments,
                    text=question.text,
                    at="t",
                    digest=reply.digest,
                    names=reply.names,
                    parts=reply.parts,
                    revision=self.view.revision,
                    age=0.0,
                ),
            )
        return run

    def end(self, run: RunDirectory, outcome: Outcome = Outcome.CHANGED, **more: Any) -> None:
        run.write_status(self.status(run, State.FINISHED, outcome, **more))
        self.changed.set()

    def status(
        self, run: RunDirectory, state: State, outcome: Outcome | None, **more: Any
    ) -> Status:
        return Status(
            id=run.id,
            state=state,
            outcome=outcome,
            reason="",
            app="app/trunk",
            started_at="2026-11-20T14:00:00Z",
            **more,
        )

    @asynccontextmanager
    async def reacting(self) -> AsyncGenerator[None, None]:
        leave = asyncio.Event()
        task = asyncio.create_task(self.reactor().run(self.seen, self.changed, leave))
        try:
            yield
        finally:
            leave.set()
            await task

    async def until(self, condition: object) -> None:
        assert callable(condition)
        while not condition():
            self.clock.advance(0.5)
            self.view.note(current=self.now())
            self.changed.set()
            await asyncio.sleep(0.005)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path)
    rig.says("10.0.0.1")
    return rig


async def test_a_change_is_reacted_to_after_a_while(rig: Rig) -> None:
    rig.end(rig.begin(1))
    async with rig.reacting():
        begun = rig.clock.monotonic()
        rig.says("10.0.0.2")
        await rig.until(lambda: rig.causes)
        assert rig.clock.monotonic() - begun >= pace.DEBOUNCE
    (cause,) = rig.causes
    assert list(map(str, cause.path)) == [WEB.name]
    assert cause.changes[0].facts == ("ipaddress",)


async def test_nothing_is_decided_while_a_run_is_on(rig: Rig) -> None:
    rig.end(rig.begin(1))
    run = rig.begin(2)
    one = rig.reactor()
    rig.says("10.0.0.2")
    assert one.catch_up() == (True, True)
    rig.end(run)
    assert one.catch_up() == (True, False)
    one.act(one.look())
    assert len(rig.causes) == 1, "it was told the address before"


async def test_a_run_that_was_told_the_answer_has_had_it(rig: Rig) -> None:
    rig.end(rig.begin(1))
    one = rig.reactor()
    one.catch_up()
    rig.says("10.0.0.2")
    rig.end(rig.begin(2), Outcome.FAILED)
    assert one.catch_up() == (True, False)
    assert one.look() == []


@pytest.mark.parametrize("partial", [{"noop": True}, {"partial": True}, {"work_tree": "/x"}])
async def test_a_run_that_is_not_whole_counts_for_nothing(
    rig: Rig, partial: dict[str, Any]
) -> None:
    rig.end(rig.begin(1))
    one = rig.reactor()
    one.catch_up()
    rig.says("10.0.0.2")
    rig.end(rig.begin(2), **partial)
    assert one.catch_up() == (False, False)
    assert len(one.look()) == 1


async def test_an_old_view_leads_to_nothing_and_is_said_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reactor, "AGAIN", 0.01)
    rig.end(rig.begin(1))
    rig.says("10.0.0.2")
    rig.view.note(current=rig.now() - 5000)
    async with rig.reacting():
        for _ in range(100):
            rig.clock.advance(0.1)
            rig.changed.set()
            await asyncio.sleep(0.002)
        assert rig.causes == []
        assert rig.log.text.count("no reactions for now: inventory: could not be asked") == 1
        await rig.until(lambda: rig.causes)


async def test_a_bus_that_was_set_up_anew_hides_nobody(rig: Rig) -> None:
    rig.revision = 1000
    rig.says("10.0.0.1")
    # Of groups nobody can tell whose they are.
    counting = "inventory[facts.networking.ip, count()] { group by facts.networking.ip }"
    rig.end(rig.begin(1, question=Question.of("puppetdb_query", [counting])))
    rig.revision = 1
    rig.says("10.0.0.2")
    rig.view.note(revision=2)
    async with rig.reacting():
        await rig.until(lambda: rig.causes)
    (cause,) = rig.causes
    assert list(map(str, cause.path)) == [WEB.name]


async def test_a_disk_that_is_full_is_tried_again(rig: Rig) -> None:
    rig.end(rig.begin(1))
    one = rig.reactor()
    one.catch_up()
    rig.says("10.0.0.2")
    rig.full = True
    with pytest.raises(StateError, match="the disk is full"):
        one.act(one.look())
    assert rig.causes == []
    rig.full = False
    rig.reactor().catch_up()  # another agent, say
    assert len(rig.causes) == 1
    assert json.loads((rig.directory / "agent" / "reactions.json").read_text())["pending"] == []


async def test_a_record_that_is_damaged_stops_nothing(rig: Rig) -> None:
    rig.end(rig.begin(1))
    one = rig.reactor()
    one.catch_up()
    run = rig.begin(2)
    run.queries.write_text("{")
    rig.end(run)
    assert one.catch_up() == (True, False)
    rig.says("10.0.0.2")
    assert len(one.look()) == 1, "what the run before it asked"
