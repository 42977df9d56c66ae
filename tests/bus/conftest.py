"""Engines and servers for the tests of the bus; coroutine tests run in a loop of their own."""

import asyncio
import inspect
from collections.abc import Callable, Iterator

import pytest

from tests.bus.engines import (
    Engine,
    EtcdEngine,
    NatsEngine,
    RelayEngine,
    ServerEngine,
    SqliteEngine,
)
from tests.bus.servers import NEW_NATS, OLD_NATS

# A test that needs longer hangs.
PATIENCE = 120.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test: one loop a test, so that nothing of it outlives it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def run() -> None:
        async with asyncio.timeout(PATIENCE):
            await pyfuncitem.obj(**arguments)

    asyncio.run(run())
    return True


def _sqlite(factory: pytest.TempPathFactory) -> Iterator[Engine]:
    yield SqliteEngine(factory.mktemp("sqlite"))


def _relay(factory: pytest.TempPathFactory) -> Iterator[Engine]:
    yield RelayEngine(factory.mktemp("relay"))


def _served(engine: ServerEngine) -> Iterator[ServerEngine]:
    engine.server.start()
    yield engine
    engine.server.stop()


def _etcd(factory: pytest.TempPathFactory) -> Iterator[ServerEngine]:
    yield from _served(EtcdEngine(factory.mktemp("etcd")))


def _old_nats(factory: pytest.TempPathFactory) -> Iterator[ServerEngine]:
    yield from _served(NatsEngine(factory.mktemp("nats-2.9"), program=OLD_NATS))


def _nats(factory: pytest.TempPathFactory) -> Iterator[ServerEngine]:
    yield from _served(NatsEngine(factory.mktemp("nats"), program=NEW_NATS))


SERVED: dict[str, Callable[[pytest.TempPathFactory], Iterator[ServerEngine]]] = {
    "etcd": _etcd,
    "nats-2.9": _old_nats,
    "nats": _nats,
}
MAKERS: dict[str, Callable[[pytest.TempPathFactory], Iterator[Engine]]] = {
    "sqlite": _sqlite,
    "relay": _relay,
    **SERVED,
}


@pytest.fixture(scope="session", params=MAKERS)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """Each engine in turn; servers run from the first test that needs them to the last."""
    yield from MAKERS[request.param](tmp_path_factory)


@pytest.fixture(scope="session", params=SERVED)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerEngine]:
    """Each engine with a server of its own, which the test may kill."""
    yield from SERVED[request.param](tmp_path_factory)
