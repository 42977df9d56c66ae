"""A node that reacts: records and a view on the disk, a host that only notes what it is handed.

python -m tests.fleet.edges.reacting_node DIRECTORY

It then reacts in a separate process, with a real inbox; the test that starts it kills it at a call.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from localpuppet.base.errors import LocalpuppetError, StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.edges.reactions import ReactionMemory
from localpuppet.fleet.edges.reactor import AGAIN, FinishedRuns, Questions, Reactor
from localpuppet.fleet.inventory.admission import ReceivedEntry
from localpuppet.fleet.inventory.query.functions import FunctionCall
from localpuppet.fleet.inventory.tables import EntryRows
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.triggers.cause import RunCause
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.node.runs.query_record import RecordedQuery, note_query
from localpuppet.node.runs.run import Outcome, RunState, Status
from localpuppet.node.runs.run_records import Records, RunDirectory
from tests.doubles.identities import person
from tests.doubles.ports import FakeClock, FakeLog, FakeProcesses
from tests.fleet.inventory.entries import entry, signed

WEB = person("web01.example.com")
ME = NodeName("lb01.example.com")


SERVERS = FunctionCall.of("servers_with_role", ["web"])


class Rig:
    """A node with records, a view and a reactor; its host only notes what it is handed."""

    me = ME

    def __init__(self, directory: Path) -> None:
        self.clock, self.log = FakeClock(), FakeLog()
        self.is_running = False
        self.causes: list[RunCause] = []
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

    def react(self, causes: Sequence[RunCause]) -> None:
        if self.full:
            raise StateError("the disk is full", where="inbox")
        self.causes += [one for one in causes if one.id not in {known.id for known in self.causes}]

    def reactor(self, *, again: float = AGAIN) -> Reactor:
        return Reactor(
            self,
            runs=FinishedRuns(self.records, self.sources),
            sources=self.sources,
            peers=self.view,
            refusal=lambda _: None,
            memory=ReactionMemory(self.directory),
            clock=self.clock,
            log=self.log,
            again=again,
        )

    def says(self, address: str) -> None:
        self.revision, self.said = self.revision + 1, self.said + 1
        said = entry(
            WEB.name,
            at=self.now() + self.said,
            facts={"networking": {"ip": address}},
            roles=("web",),
            paths=((),),
        )
        arrived = ReceivedEntry(
            node=WEB.name, token=signed(WEB, said), found=EntryRows.of(said), revision=self.revision
        )
        self.view.take([arrived], revision=self.revision)
        self.view.note(current=self.now())
        self.seen.set()

    def begin(
        self, number: int, *, asks: bool = True, question: FunctionCall = SERVERS
    ) -> RunDirectory:
        """Start a run that has sent a query."""
        run = RunDirectory(self.records.directory / f"20261120T14000{number}.000000Z-abcd")
        run.path.mkdir(parents=True)
        mine = asdict(FakeProcesses().me())
        run.write_status(self.status(run, RunState.RUNNING, None, supervisor=mine))
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
        run.write_status(self.status(run, RunState.FINISHED, outcome, **more))
        self.changed.set()

    def status(
        self, run: RunDirectory, state: RunState, outcome: Outcome | None, **more: Any
    ) -> Status:
        more |= {"id": run.id, "reason": "", "release": "app/trunk"}
        return Status(state=state, outcome=outcome, started_at="2026-11-20T14:00:00Z", **more)

    @asynccontextmanager
    async def reacting(self, *, again: float = AGAIN) -> AsyncGenerator[None, None]:
        leave = asyncio.Event()
        task = asyncio.create_task(self.reactor(again=again).run(self.seen, self.changed, leave))
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


# A disk that refuses a call accepts the next one: the reactor tries again, and once more.
TURNS = 3


class KilledNode(Rig):
    """A node whose host writes causes down, as an agent does."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.inbox = Inbox(directory / "inbox.sqlite", self.clock)

    def react(self, causes: Sequence[RunCause]) -> None:
        fresh = [one for one in causes if not self.inbox.seen(one.id)]
        self.inbox.accept([(one, one.timestamp + 3600) for one in fresh])

    def turns(self) -> None:
        """React, as an agent that has just begun."""
        reactor = self.reactor()
        for _ in range(TURNS):
            try:
                reactor.catch_up()
                reactor.act(reactor.look())
            except LocalpuppetError as error:
                self.log.info(str(error))


if __name__ == "__main__":
    KilledNode(Path(sys.argv[1])).turns()
