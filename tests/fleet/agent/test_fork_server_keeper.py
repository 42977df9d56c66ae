"""When the agent starts a fork server, and when again: with servers that a test has written."""

import asyncio
import os
from collections.abc import Callable

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.machine.processes import KeptProcess, SystemProcesses, start_kept
from localpuppet.fleet.agent.fork_runner import ForkServerKeeper
from tests.doubles.ports import FakeLog

PROCESSES = SystemProcesses()


class Busy:
    """The part of an agent that the keeper reads."""

    def __init__(self) -> None:
        self.running = False
        self.changed = asyncio.Event()

    def subscribe(self) -> asyncio.Event:
        return self.changed


class Servers:
    """Starts shell commands as servers, one after the other; the last one again and again."""

    def __init__(self, *scripts: str) -> None:
        self.scripts = list(scripts)
        self.started: list[KeptProcess] = []
        self.more = asyncio.Event()

    def __call__(self) -> KeptProcess:
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        self.more.set()
        if not script:
            raise UnavailableError("Puppet is not known before the first run")
        self.started.append(start_kept(["/bin/sh", "-c", script], env=dict(os.environ)))
        return self.started[-1]

    async def until(self, count: int) -> None:
        while len(self.started) < count:
            self.more.clear()
            await self.more.wait()


def warming(servers: Servers, agent: Busy, log: FakeLog) -> ForkServerKeeper:
    return ForkServerKeeper(agent, start=servers, log=log, first=0.001)


async def kept(servers: Servers, agent: Busy, then: Callable[[], object]) -> FakeLog:
    """Keep servers until the first that stays is running; leave after `then`."""
    log, leave = FakeLog(), asyncio.Event()
    keeping = asyncio.create_task(warming(servers, agent, log).keep(leave))
    await servers.until(2)
    then()
    leave.set()
    await keeping
    assert not any(PROCESSES.alive(server.identity) for server in servers.started)
    return log


async def test_a_server_that_recycled_itself_is_replaced_without_a_log_line() -> None:
    log = await kept(Servers("exit 10", "exec sleep 600"), Busy(), lambda: None)
    assert log.lines == []


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("exit 3", "the fork server ended (exit code 3)"),
        ("exit 0", "the fork server ended (exit code 0)"),
        ("kill -9 $$", "the fork server ended (signal 9)"),
    ],
)
async def test_a_failed_server_is_logged_and_replaced(first: str, said: str) -> None:
    log = await kept(Servers(first, "exec sleep 600"), Busy(), lambda: None)
    assert said in log.text


async def test_a_server_that_cannot_be_had_is_tried_again() -> None:
    log = await kept(Servers("", "exit 10", "exec sleep 600"), Busy(), lambda: None)
    assert "Puppet is not known" in log.text


async def test_no_server_is_started_while_a_run_is_on() -> None:
    agent, servers = Busy(), Servers("exec sleep 600")
    agent.running = True
    leave = asyncio.Event()
    keeping = asyncio.create_task(warming(servers, agent, FakeLog()).keep(leave))
    for _ in range(20):
        await asyncio.sleep(0)
    assert servers.started == []
    agent.running = False
    agent.changed.set()
    await servers.until(1)
    leave.set()
    await keeping


async def test_a_server_ends_when_its_agent_is_gone() -> None:
    server = start_kept(["/bin/sh", "-c", "read x"], env={})
    os.close(server._pipe)
    server._pipe = -1
    assert server.code() == 1, "read found the end"
