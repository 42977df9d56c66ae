"""The real fork server: requests that it accepts or declines, and what it keeps in memory.

When the agent starts one, and when again, is tested with servers that a test has written."""

import asyncio
import json
import os
import re
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.machine.fork_server import ForkServerClient
from localpuppet.base.machine.ports import Child, ProcessEnd
from localpuppet.base.machine.processes import KeptProcess, SystemProcesses, start_kept
from localpuppet.fleet.agent.fork_runner import RECYCLED, ForkServerKeeper, start_server
from localpuppet.node.app import NodeApp, program_environment
from localpuppet.node.puppet.launching import LIMITS, ServerLimits
from tests.doubles.ports import FakeLog
from tests.rigs.node import PATIENCE, Node, completed, make_node
from tests.rigs.warm.listening import is_listening
from tests.rigs.warm.memory import remembers

SECRET = "hunter2-" + "kGwq0Zc7"
# What has been read, and what Puppet would load in a run: a type, a provider, a face, a command.
OVERRIDES = (
    *("facter/version.rb", "puppet/type/file.rb", "puppet/provider/package/apt.rb"),
    *("puppet/face/help.rb", "puppet/application/apply.rb"),
)
ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(60)
    connection.connect(sys.argv[1])
    print(connection.recv(100))
"""


class Served:
    def __init__(self, node: Node) -> None:
        self.wiring = NodeApp(str(node.root))
        self.node = node
        node.copy_pack()
        self.server: ForkServerClient = self.wiring.fork_server
        self.process: KeptProcess | None = None

    def begin(self, limits: ServerLimits = LIMITS) -> None:
        """Have a server that listens: the running one, if there is one."""
        if self.alive:
            return
        if self.process is not None:
            self.process.code()
        self.server.path.unlink(missing_ok=True)
        self.process = start_server(self.wiring, limits)
        self.node.wait_until(lambda: is_listening(self.server.path) or not self.alive)

    def again(self, limits: ServerLimits) -> None:
        if self.alive and self.process is not None:
            self.process.end()
            self.node.wait_until(lambda: not self.alive)
        self.begin(limits)

    def recycled(self) -> bool:
        self.node.wait_until(lambda: not self.alive)
        assert self.process is not None
        return self.process.code() == RECYCLED

    @property
    def alive(self) -> bool:
        return self.process is not None and self.wiring.processes.alive(self.process.identity)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.identity.pid

    def request(self, *arguments: str, **env: str) -> dict[str, Any]:
        installation = self.wiring.require_puppet()
        modules = str(self.node.root / "modules" / "foo" / "trunk")
        return {
            "argv": [installation.command, "apply", "--modulepath", modules, *arguments],
            "env": {**program_environment(), **env},
            "version": installation.version,
            "environment": "",
            "libdir": installation.settings["libdir"],
            "facter": None,
        }

    def start(self, request: dict[str, Any]) -> Child:
        with (self.node.root / "lock").open("w") as lock:
            return self.server.start(request, cwd=Path("/"), keep=[lock.fileno()], group="test")

    def declines(self, **changed: Any) -> str:
        """Return why a request is declined that is another than it should be."""
        with pytest.raises(UnavailableError) as caught:
            self.start({**self.request("--version"), **changed})
        return str(caught.value)


def over(child: Child) -> tuple[ProcessEnd, bytes]:
    ended = None
    for _ in range(int(PATIENCE * 20)):
        ended = child.wait(0.05)
        if ended:
            break
    assert ended is not None
    said = child.read()
    child.release()
    return ended, said


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, puppet_probe: str) -> Iterator[Served]:
    served = Served(make_node(tmp_path_factory.mktemp("fork") / "n", puppet_probe))
    yield served
    if served.process is not None:
        served.process.end()
        served.process.code()


@pytest.fixture
def served(place: Served) -> Served:
    place.begin()
    return place


def test_another_user_is_refused_even_if_files_allow_access(served: Served) -> None:
    for path, mode in ((served.server.path, 0o600), (served.server.path.parent, 0o700)):
        status = path.stat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid) == (mode, os.geteuid())
    # The place of the socket does not matter then: the kernel reports the user at the other end.
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(served.server.path))
        probe.sendall(b"\n")
        assert probe.recv(100).startswith(b"hello "), "it serves its own user"
    changed = [served.server.path, *served.server.path.parents]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in changed}
    try:
        for path in changed[:-1]:
            path.chmod(modes[path] | 0o711 if path.is_dir() else 0o666)
        asks = ["/usr/bin/python3", "-I", "-c", ASK, str(served.server.path)]
        rights: dict[str, Any] = {"user": "daemon", "group": "daemon", "extra_groups": []}
        assert completed(*asks, **rights).out == "b''\n"
    finally:
        for path in changed[:-1]:
            path.chmod(modes[path])


def test_requests_that_do_not_match_the_server_are_declined(served: Served) -> None:
    installation = served.wiring.require_puppet()
    env = program_environment()
    before = served.pid
    assert "its environment has another PATH" in served.declines(env={**env, "PATH": "/bin"})
    assert "its environment has another RUBYLIB" in served.declines(env={**env, "RUBYLIB": "/x"})
    assert "its Puppet is 6.1.0" in served.declines(version="6.1.0")
    argv = ["/opt/puppet", "apply", "--modulepath", ""]
    assert f"the fork server's {installation.command}" in served.declines(argv=argv)
    for number, name in enumerate(OVERRIDES):
        file = served.node.write(f"synced{number}/{name}", "")
        library = str(file).removesuffix(f"/{name}")
        assert f"{file} takes the place of Puppet's own" in served.declines(libdir=library)
    assert served.pid == before
    assert served.alive, "it keeps running"
    assert "its process exited 1" in served.declines(argv="no list")
    served.node.wait_until(lambda: not served.alive)


def test_a_request_never_enters_the_server(served: Served) -> None:
    go = served.node.root / "go"
    waits = f"generate('/bin/sh', '-c', 'until [ -e {go} ]; do sleep 0.1; done')"
    child = served.start(served.request("-e", waits, PLANTED=SECRET))
    assert f"PPid:\t{served.pid}\n" in Path(f"/proc/{child.identity.pid}/status").read_text()
    # At first, the child is a copy of the server.
    served.node.wait_until(lambda: remembers(child.identity.pid, SECRET))
    go.touch()
    assert over(child)[0] == ProcessEnd(code=0, signal=None)
    assert not remembers(served.pid, SECRET)


def test_a_client_that_leaves_early_leaves_no_process(served: Served) -> None:
    before = served.pid
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(served.server.path))
        connection.sendall(b"\n")
        child = int(connection.recv(100).split()[1])
    served.node.wait_until(lambda: not Path(f"/proc/{child}").exists())
    with socket.socket(socket.AF_UNIX) as connection:  # another sends nothing
        connection.connect(str(served.server.path))
    assert over(served.start(served.request("--version")))[0] == ProcessEnd(code=0, signal=None)
    assert (served.alive, served.pid) == (True, before)


def test_a_child_has_the_limits_and_the_priority_of_its_client(served: Served) -> None:
    asks = (
        "import json, os, resource, sys; from pathlib import Path\n"
        "os.umask(0o027); os.nice(3); resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))\n"
        "from localpuppet.base.machine.fork_server import ForkServerClient\n"
        "from localpuppet.base.machine.processes import SystemProcesses\n"
        "server = ForkServerClient(Path(sys.argv[1]), SystemProcesses())\n"
        "child = server.start(json.loads(sys.argv[2]), cwd=Path('/tmp'), keep=[0], group='x')\n"
        "while not child.wait(0.05): pass\n"
        "print(child.read().decode())\n"
    )
    code = "notice(generate('/bin/sh', '-c', 'umask; nice; ulimit -n'))"
    request = json.dumps(served.request("-e", code))
    client = [sys.executable, "-c", asks, str(served.server.path), request]
    said = completed(*client).out
    assert f"0027\n{min(os.nice(0) + 3, 19)}\n300\n" in said, said[-600:]


def test_a_server_whose_files_have_changed_declines_and_ends(served: Served) -> None:
    before = served.pid
    pack = served.node.compiled / "pack"
    pack.rename(pack.with_name("other"))
    assert f"{pack} has changed since the fork server read it" in served.declines()
    served.node.wait_until(lambda: not served.alive)
    served.begin()
    assert served.pid != before


def test_a_ruby_that_is_to_warn_makes_no_run(
    tmp_path: Path, puppet_probe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBYOPT", "-w")
    warns = Served(make_node(tmp_path / "n", puppet_probe))
    warns.begin()
    assert warns.process is not None
    assert "Ruby is to warn or to debug" in warns.declines()
    warns.process.end()
    warns.process.code()


def test_a_server_ends_at_each_of_its_limits(served: Served) -> None:
    served.again(replace(LIMITS, runs=2))
    for left in (True, False):
        assert over(served.start(served.request("--version")))[0] == ProcessEnd(code=0, signal=None)
        served.node.wait_until(lambda: served.alive is left)  # noqa: B023 - it is waited for here
    assert served.recycled()
    served.again(replace(LIMITS, memory=1))
    assert over(served.start(served.request("--version")))[0] == ProcessEnd(code=0, signal=None)
    assert served.recycled(), "it has grown too large"
    served.again(replace(LIMITS, seconds=1))
    assert served.recycled(), "it is too old"


def test_a_killed_server_is_reported_as_not_running(served: Served) -> None:
    os.kill(served.pid, signal.SIGKILL)
    served.node.wait_until(lambda: served.server.memory() is None)
    assert re.search("is not running|went away", served.declines())


PROCESSES = SystemProcesses()


class Busy:
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


@pytest.mark.parametrize(
    ("first", "said"),
    [
        pytest.param(["exit 10"], "", id="a server that recycled itself is not logged"),
        (["exit 3"], "the fork server ended (exit code 3)"),
        (["exit 0"], "the fork server ended (exit code 0)"),
        (["kill -9 $$"], "the fork server ended (signal 9)"),
        pytest.param(["", "exit 10"], "Puppet is not known", id="none can be had"),
    ],
)
async def test_a_server_that_ended_is_replaced(first: list[str], said: str) -> None:
    log = await kept(Servers(*first, "exec sleep 600"), Busy(), lambda: None)
    assert (log.text == "") == (said == "")
    assert said in log.text


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
