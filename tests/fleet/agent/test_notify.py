"""What an agent sends to the service manager; here a real socket receives it."""

import asyncio
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.base.machine.service_manager import ServiceManager
from localpuppet.fleet.agent.agent import Agent, RunCompletion, RunObstacles, RunOrder
from localpuppet.fleet.history.node_history import Auditor
from localpuppet.fleet.triggers.cause import CauseKind
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.fleet.triggers.trigger_admission import Admission, SignedAdmission
from localpuppet.fleet.trust.key_files import TrustedKeys
from localpuppet.fleet.trust.signing import Verifier
from localpuppet.node.runs.holds import HoldStatus
from tests.doubles.ports import FakeLog
from tests.rigs.node import COMMAND, PATIENCE
from tests.rigs.split_member import NETWORK, Split

A = NodeName.parse("a.example.com")
WATCHDOG = 0.3


class Manager:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(PATIENCE)
        path.chmod(0o666)

    def hear(self) -> str:
        return self._socket.recv(4096).decode()

    def hear_until(self, text: str) -> list[str]:
        said = [self.hear()]
        while text not in said[-1]:
            said.append(self.hear())
        return said

    def drain(self) -> None:
        while self.says_something(0):
            self.hear()

    def says_something(self, seconds: float) -> bool:
        return bool(select.select([self._socket], [], [], seconds)[0])

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify.sock")
    yield made
    made.close()


@pytest.fixture
def managed(split: Split) -> Iterator[Manager]:
    """A manager that other users may talk to, too."""
    made = Manager(split.node.root / "notify.sock")
    yield made
    made.close()


def test_each_agent_notifies_ready_alive_and_stopping(split: Split, managed: Manager) -> None:
    env = {"NOTIFY_SOCKET": str(managed.path), "WATCHDOG_USEC": str(int(WATCHDOG * 1e6))}
    run_side = None
    for side, user in (("both", None), ("run", None), ("network", NETWORK)):
        if side == "network":
            run_side = split.run_side()
        service = split.start(*COMMAND, "agent", "--side", side, user=user, env=env)
        assert "STATUS=a.example.com: " in managed.hear_until("READY=1")[-1], service.said()
        for _ in range(3):
            assert managed.hear_until("WATCHDOG=1")[-1] == "WATCHDOG=1"
        service.process.send_signal(signal.SIGTERM)
        managed.hear_until("STOPPING=1")
        assert service.process.wait(PATIENCE) == 0, service.said()
        managed.drain()
    assert run_side is not None


def service_at(path: Path, **more: str) -> ServiceManager:
    environment = {"NOTIFY_SOCKET": str(path), **more}
    found = ServiceManager.from_environment(environment)
    assert environment == {}, "no child can notify in the agent's name"
    return found


def test_the_service_manager_is_notified(tmp_path: Path, manager: Manager) -> None:
    hour = {"WATCHDOG_USEC": "3600000000", "WATCHDOG_PID": str(os.getpid())}
    found = service_at(manager.path, **hour)
    found.ready("waits")
    found.alive()
    found.alive()  # not more often than it is asked for
    found.stopping()
    said = ["READY=1\nSTATUS=waits", "WATCHDOG=1", "STOPPING=1"]
    assert [manager.hear() for _ in said] == said
    service_at(manager.path, **{**hour, "WATCHDOG_PID": "1"}).alive()
    assert not manager.says_something(0), "the watchdog is another process's"
    late = service_at(tmp_path / "late", **{**hour, "WATCHDOG_USEC": "1"})
    late.alive()
    listener = Manager(tmp_path / "late")
    late.alive()
    assert listener.hear() == "WATCHDOG=1", "it missed one, and gets the next"
    listener.close()
    late.ready("no manager listens any more: no error")


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nonexistent"},
        {"WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "@abstract-and-not-there", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"},
    ],
)
def test_without_a_service_manager_nothing_happens(environment: dict[str, str]) -> None:
    found = ServiceManager.from_environment(environment)
    found.ready("")
    found.alive()
    found.stopping()


class Stuck:
    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    def held(self) -> HoldStatus:
        while not self.open.is_set():
            self.entered.set()
            assert self.open.wait(PATIENCE)
        return HoldStatus(reason="on hold")


class NoRunner:
    async def run(self, order: RunOrder) -> RunCompletion:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError


def test_a_stuck_work_loop_gives_no_sign_of_life(tmp_path: Path, manager: Manager) -> None:
    env = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": str(int(WATCHDOG * 1e6))}
    service = ServiceManager.from_environment(env)
    clock, stuck = SystemClock(), Stuck()
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def work() -> None:
        inbox = Inbox(tmp_path / "inbox.sqlite", clock)
        agent = Agent(
            admission=SignedAdmission(
                Admission(me=A, trigger_refusal=lambda _: None, seen=inbox.seen),
                Verifier(TrustedKeys(tmp_path / "trusted"), None, clock),
                clock,
                Auditor(lambda _: None, clock, FakeLog()),
            ),
            inbox=inbox,
            runner=NoRunner(),
            obstacles=RunObstacles(held=stuck.held),
            clock=clock,
            log=FakeLog(),
        )
        stop.append((asyncio.get_running_loop(), asyncio.Event()))
        agent.request_run(CauseKind.MANUAL)
        await agent.work(stop[0][1], alive=service.alive, pulse=service.pulse)

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    try:
        for _ in range(3):
            assert manager.hear() == "WATCHDOG=1"
        stuck.open.clear()
        assert stuck.entered.wait(PATIENCE)
        manager.drain()
        assert not manager.says_something(3 * WATCHDOG)  # systemd would end it by now
        stuck.open.set()
        assert manager.hear() == "WATCHDOG=1"
    finally:
        stuck.open.set()
        loop, event = stop[0]
        loop.call_soon_threadsafe(event.set)
        thread.join(PATIENCE)
    assert os.environ.get("NOTIFY_SOCKET") is None
