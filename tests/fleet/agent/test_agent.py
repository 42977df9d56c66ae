"""The agent's decisions, with a fake run, hold and clock; the inbox is a real file."""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.agent.agent import (
    MANY,
    Agent,
    RequestedRunResult,
    RunCompletion,
    RunObstacles,
)
from localpuppet.fleet.history.history_records import AuditRecord
from localpuppet.fleet.history.node_history import Auditor
from localpuppet.fleet.triggers.cause import CauseKind
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.fleet.triggers.trigger_admission import Admission, SignedAdmission
from localpuppet.fleet.trust.signing import MessageKind, claimed_payload
from localpuppet.node.runs.holds import HoldStatus
from tests.doubles.agent_ports import FakeRunner
from tests.doubles.identities import Person, person, verifier
from tests.doubles.ports import FakeClock, FakeLog
from tests.fleet.make import a_trigger, completed, impossible

C = NodeName.parse("c.example.com")
B = NodeName.parse("b.example.com")
OVER = completed("changed", run="1")


def number(index: int) -> str:
    return f"00000000-0000-4000-8000-{index:012}"


@dataclass
class Rig:
    directory: Path
    clock: FakeClock = field(default_factory=FakeClock)
    log: FakeLog = field(default_factory=FakeLog)
    sender: Person = field(default_factory=lambda: person("a.example.com"))
    hold: list[str] = field(default_factory=list)
    alive: int = 0
    pulse: float = 2.0
    missing: str = ""  # which entries a step that waits lacks
    begun: RunCompletion | None = None  # the run that an earlier agent began

    def __post_init__(self) -> None:
        self.audited: list[AuditRecord] = []
        self.runner = FakeRunner()
        self.stop = asyncio.Event()
        self.inbox = Inbox(self.directory / "inbox.sqlite", self.clock)
        self.agent = Agent(
            admission=SignedAdmission(
                Admission(me=B, trigger_refusal=self.refusal, seen=self.inbox.seen),
                verifier(self.directory, self.sender),
                self.clock,
                Auditor(self.audited.append, self.clock, self.log),
            ),
            inbox=self.inbox,
            runner=self.runner,
            obstacles=RunObstacles(
                held=self.held, lacking=lambda _: self.missing, begun=lambda _: self.begun
            ),
            clock=self.clock,
            log=self.log,
        )

    def refusal(self, sender: NodeName) -> str | None:
        return "not you" if sender == "c.example.com" else None

    def work(self) -> Coroutine[Any, Any, None]:
        return self.agent.work(self.stop, alive=self.live, pulse=self.pulse)

    def held(self) -> HoldStatus | None:
        if self.hold == ["damaged"]:
            raise StateError("a hold is damaged")
        if not self.hold:
            return None
        rollouts = frozenset(one for one in self.hold if "/rollout/" in one)
        alone = len(rollouts) == len(self.hold) == 1
        return HoldStatus(reason=self.hold[0], rollouts=rollouts, alone=alone)

    def live(self) -> None:
        self.alive += 1

    def token(self, index: int, *, ttl: int = 180, hosts: tuple[NodeName, ...] = (B,)) -> bytes:
        at = self.clock.now().timestamp()
        made = a_trigger(self.sender.name, *hosts, at=at, uuid=number(index), ttl=ttl)
        return self.sender.signer.sign(made.to_payload(), MessageKind.TRIGGER)

    def ids(self) -> list[str]:
        return [cause.id for cause in self.inbox.causes()]

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[None, None]:
        work = asyncio.create_task(self.work())
        try:
            yield
            self.stop.set()
            await work
        finally:
            work.cancel()
            self.inbox.close()

    async def until(self, text: str) -> None:
        changed = self.agent.subscribe()
        while text not in self.log.text:
            changed.clear()
            await changed.wait()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, pulse=3600.0)


async def test_a_trigger_is_on_the_disk_before_it_runs_and_until_it_is_over(rig: Rig) -> None:
    async with rig.working():
        rig.agent.receive_triggers([rig.token(1)])
        assert rig.ids() == [f"a.example.com/{number(1)}"]
        order = await rig.runner.orders.get()
        assert order.text == "trigger from a.example.com"
        assert order.causes["paths"] == [["a.example.com"]]
        assert rig.agent.paths() == (("a.example.com",),)
        assert rig.ids()
        rig.runner.ends.put_nowait(OVER)
        await rig.until("run 1 changed")
        assert rig.ids() == []
        assert rig.agent.paths() == ((),)
        found = [(one.uuid, one.run, one.outcome) for one in rig.agent.outcomes]
        assert found == [(number(1), "1", "changed")]
    # The run may have restarted the agent, and the sender of the trigger still waits.
    assert Rig(rig.directory, sender=rig.sender).agent.outcomes == rig.agent.outcomes


async def test_triggers_during_a_run_lead_to_a_single_run_after_it(rig: Rig) -> None:
    async with rig.working():
        rig.agent.receive_triggers([rig.token(1)])
        await rig.runner.orders.get()
        for index in range(2, 50):
            rig.agent.receive_triggers([rig.token(index)])
        rig.runner.ends.put_nowait(OVER)
        assert (await rig.runner.orders.get()).causes["count"] == 48
        rig.runner.ends.put_nowait(OVER)
        await rig.until("accepted")
    assert rig.runner.orders.empty()


async def test_a_duplicate_is_dropped_without_a_warning_also_after_a_restart(rig: Rig) -> None:
    token = rig.token(1)
    rig.agent.receive_triggers([token, token])
    rig.agent.receive_triggers([token])
    assert len(rig.ids()) == 1
    again = Rig(rig.directory, sender=rig.sender)
    again.agent.receive_triggers([token])
    assert len(again.ids()) == 1
    assert [kind for kind, line in again.log.lines if "duplicate" in line] == ["debug"]
    assert "1 causes that an earlier agent accepted" in again.log.text


@pytest.mark.parametrize("fate", [RequestedRunResult.BUSY, RequestedRunResult.IMPOSSIBLE])
async def test_a_run_that_did_not_start(rig: Rig, fate: RequestedRunResult) -> None:
    async with rig.working():
        rig.agent.receive_triggers([rig.token(1)])
        await rig.runner.orders.get()
        rig.runner.ends.put_nowait(RunCompletion(result=fate, reason="the reason"))
        if fate is RequestedRunResult.IMPOSSIBLE:
            await rig.until("no run could be started: the reason")
            assert rig.ids() == []
            assert rig.agent.outcomes[0].outcome == "dropped"
        else:
            await rig.until("postponed the run, trying again soon: the reason")
            assert rig.ids()
            rig.clock.advance(2)
            rig.agent.recheck()
            await rig.runner.orders.get()
            rig.runner.ends.put_nowait(OVER)
            await rig.until("run 1 changed")


async def test_on_hold_causes_wait_and_expire_each_in_its_time(rig: Rig) -> None:
    rig.hold.append("migration")
    async with rig.working():
        rig.agent.receive_triggers([rig.token(1, ttl=10), rig.token(2, ttl=1000)])
        rig.clock.advance(11)
        rig.agent.recheck()
        await rig.until(f"dropped a.example.com/{number(1)}: expired while the node was on hold")
        assert rig.ids() == [f"a.example.com/{number(2)}"]
        assert rig.runner.orders.empty()
        rig.hold.clear()
        rig.agent.recheck()
        assert (await rig.runner.orders.get()).causes["count"] == 1
        rig.runner.ends.put_nowait(OVER)


async def test_a_hold_that_cannot_be_read_is_a_hold(rig: Rig) -> None:
    rig.hold.append("damaged")
    async with rig.working():
        rig.agent.receive_triggers([rig.token(1)])
        while rig.alive < 3:  # turns of the work loop: one is enough to start a run
            rig.agent.recheck()
            await asyncio.sleep(0)
        assert rig.runner.orders.empty()


async def test_many_drops_with_the_same_reason_share_a_line(rig: Rig) -> None:
    async with rig.working():
        rig.agent.receive_triggers([rig.token(index) for index in range(MANY + 1)])
        await rig.runner.orders.get()
        rig.runner.ends.put_nowait(impossible("broken input"))
        await rig.until(f"dropped {MANY + 1} causes: no run could be started: broken input")
        assert len([line for kind, line in rig.log.lines if kind == "warning"]) == 2


async def test_term_lets_the_run_finish_and_starts_no_other(rig: Rig) -> None:
    async with rig.working():
        rig.agent.receive_triggers([rig.token(1)])
        await rig.runner.orders.get()
        rig.agent.receive_triggers([rig.token(2)])
        rig.stop.set()
        await asyncio.sleep(0)  # it ends with its run and not at its next look, an hour later
        rig.runner.ends.put_nowait(OVER)
    assert "run 1 changed" in rig.log.text
    assert rig.runner.orders.empty()
    assert rig.ids() == [f"a.example.com/{number(2)}"], "the next agent runs for it"


async def test_an_inbox_that_cannot_be_written_ends_the_agent(rig: Rig) -> None:
    work = asyncio.create_task(rig.work())
    rig.agent.receive_triggers([rig.token(1)])
    await rig.runner.orders.get()
    for file in rig.directory.glob("inbox.sqlite*"):
        file.unlink()
    (rig.directory / "inbox.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(StateError):
        rig.agent.receive_triggers([rig.token(2)])
    rig.runner.ends.put_nowait(OVER)
    with pytest.raises(StateError):
        await work


async def test_triggers_that_were_decided_are_recorded(rig: Rig) -> None:
    accepted, expired, elsewhere = rig.token(1), rig.token(2, ttl=0), rig.token(3, hosts=(C,))
    rig.agent.receive_triggers([accepted, accepted, elsewhere, expired, rig.token(4)[:-3]])
    rig.agent.receive_triggers([accepted])  # once more from the bus
    found = [(one.caller, one.action, one.request, str(one.decision)) for one in rig.audited]
    assert found == [
        ("choria=a.example.com", "trigger", number(1), "accepted"),
        ("choria=a.example.com", "trigger", number(2), "refused"),
        ("", "trigger", "", "refused"),
    ]


async def test_the_reasons_of_triggers_that_were_not_accepted_are_published(rig: Rig) -> None:
    changed = rig.agent.subscribe()
    changed.clear()
    rig.agent.receive_triggers([rig.token(1), rig.token(2, ttl=0), rig.token(3, hosts=(C,))])
    assert changed.is_set()
    (end,) = rig.agent.not_accepted.values()
    assert (end.sender, end.uuid, end.outcome) == ("a.example.com", number(2), "dropped")
    assert "its ttl is 0 s" in end.reason
    accepted = rig.token(1)
    rig.clock.advance(600)
    rig.agent.receive_triggers([accepted])  # listed again: it is no longer valid
    assert [*rig.agent.not_accepted.values()] == [end]


async def test_many_senders_of_refused_triggers_do_not_fill_the_presence(rig: Rig) -> None:
    changed = rig.agent.subscribe()
    tells = 0
    for index in range(100):
        changed.clear()
        sender = NodeName(f"x{index}.example.com")
        payload = json.loads(claimed_payload(rig.token(index)))
        forged = {**payload, "hostname": sender, "path": [sender]}
        rig.agent.receive_triggers(
            [rig.sender.signer.sign(json.dumps(forged).encode(), MessageKind.TRIGGER)]
        )
        tells += changed.is_set()
    assert len(rig.agent.not_accepted) == 8
    assert "x99.example.com" in rig.agent.not_accepted
    assert tells == 1


async def test_no_message_makes_the_agent_fail(rig: Rig) -> None:
    good = rig.token(1)
    rig.agent.receive_triggers(
        [b"", b"\xff" * 1000, b"a.b.c", b"...", good[:-5], good + b"A", b"[" * 10_000]
    )
    rig.agent.receive_triggers([rig.token(2, hosts=(NodeName("z.example.com"),))])
    assert rig.ids() == []
    assert all(line.isprintable() for _, line in rig.log.lines)
    assert [kind for kind, line in rig.log.lines if "not addressed" in line] == ["debug"]


async def test_timer_and_request_causes_lead_to_runs(rig: Rig) -> None:
    async with rig.working():
        assert rig.agent.request_run(CauseKind.TIMER, good_for=60) is None
        order = await rig.runner.orders.get()
        assert (order.text, order.noop, order.puppet_tags) == ("timer", False, ())
        rig.agent.request_run(
            CauseKind.REQUEST, sender="choria=alice", noop=True, puppet_tags=["web"]
        )
        rig.runner.ends.put_nowait(OVER)
        order = await rig.runner.orders.get()
        expected = ("request from choria=alice", True, ("web",))
        assert (order.text, order.noop, order.puppet_tags) == expected
        rig.runner.ends.put_nowait(OVER)
    assert rig.alive > 0, "the watchdog is fed from the work loop"


async def test_a_bug_in_a_run_is_not_hidden(rig: Rig) -> None:
    rig.agent.receive_triggers([rig.token(1)])
    rig.runner.ends.put_nowait(RuntimeError("a bug"))
    with pytest.raises(RuntimeError):
        await rig.work()
    assert rig.ids()
