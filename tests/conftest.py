"""Fixtures of every test: a node, and an event loop for coroutines. Base and node need no others.

Puppet is probed once per test session, whose processes share the answer and compiled Ruby; each
node gets the answer with its own paths in it.
Each coroutine test runs in a separate event loop.
"""

import asyncio
import gc
import inspect
import os
import signal
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.doubles.simulated_loop import run_simulated
from tests.rigs.installed import share_wheel
from tests.rigs.node import PATIENCE, REPOSITORY, Node, make_node, share_puppet

pytest_plugins = ["tests.rigs.long", "tests.rigs.quick"]

# No example has a deadline, nor has its making: how busy the machine is does not decide the result
# of a test.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")


def pytest_configure(config: pytest.Config) -> None:
    """Restore the signals of a terminal's keys for child processes: `nohup` and `&` ignore them."""
    config.addinivalue_line("markers", "simulated: a coroutine that runs in simulated time")
    for number, usual in (
        (signal.SIGHUP, signal.SIG_DFL),
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Have the garbage collector never look at modules and collected tests: they stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test in a separate loop, so that none of its tasks outlives it.

    With the mark `simulated`, the loop has a simulated clock.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    if pyfuncitem.get_closest_marker("simulated"):
        run_simulated(pyfuncitem.obj(**arguments))
        return True

    async def run() -> None:
        async with asyncio.timeout(PATIENCE):
            await pyfuncitem.obj(**arguments)

    asyncio.run(run())
    return True


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory that all processes of the session share."""
    directory = tmp_path_factory.getbasetemp()
    return directory.parent if "PYTEST_XDIST_WORKER" in os.environ else directory


@pytest.fixture(scope="session")
def puppet_probe(shared_directory: Path) -> str:
    """Ask Puppet once, and return the stored answers with @ROOT@ for the root."""
    return share_puppet(shared_directory)


@pytest.fixture(scope="session")
def wheel(shared_directory: Path) -> Path:
    """Return the wheel of this clone, built once."""
    return share_wheel(shared_directory)


@pytest.fixture(scope="session")
def clients() -> Path:
    """Return the directory with the programs of others, which `scripts/clients` fetches."""
    script = str(REPOSITORY / "scripts" / "clients")
    return Path(
        subprocess.run([script], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
    )


@pytest.fixture
def node(tmp_path: Path, puppet_probe: str) -> Iterator[Node]:
    """A node with the sample modules, whose processes end with the test."""
    made = make_node(tmp_path, puppet_probe)
    yield made
    made.end()
