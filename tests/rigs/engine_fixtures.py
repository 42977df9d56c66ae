"""Engines and servers for the tests of the bus."""

from collections.abc import Callable, Iterator

import pytest

from tests.rigs.engines import (
    Engine,
    EtcdEngine,
    MemoryEngine,
    NatsEngine,
    RelayEngine,
    ServerEngine,
    SqliteEngine,
)
from tests.rigs.servers import NEW_NATS, OLD_NATS


def _sqlite(factory: pytest.TempPathFactory) -> Iterator[Engine]:
    yield SqliteEngine(factory.mktemp("sqlite"))


def _relay(factory: pytest.TempPathFactory) -> Iterator[Engine]:
    yield RelayEngine(factory.mktemp("relay"))


def _memory(_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    yield MemoryEngine()


def _served(engine: ServerEngine) -> Iterator[ServerEngine]:
    engine.server.start()
    yield engine
    engine.server.stop()


def _etcd(factory: pytest.TempPathFactory) -> Iterator[ServerEngine]:
    yield from _served(EtcdEngine(factory.mktemp("etcd")))


def _old_nats(factory: pytest.TempPathFactory) -> Iterator[ServerEngine]:
    yield from _served(NatsEngine(factory.mktemp("nats-debian"), program=OLD_NATS))


def _nats(factory: pytest.TempPathFactory) -> Iterator[ServerEngine]:
    yield from _served(NatsEngine(factory.mktemp("nats"), program=NEW_NATS))


SERVED: dict[str, Callable[[pytest.TempPathFactory], Iterator[ServerEngine]]] = {
    "etcd": _etcd,
    "nats-debian": _old_nats,
    "nats": _nats,
}
MAKERS: dict[str, Callable[[pytest.TempPathFactory], Iterator[Engine]]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "relay": _relay,
    **SERVED,
}


@pytest.fixture(scope="session", params=MAKERS)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """Each engine; its servers run from the first test that needs them to the last."""
    yield from MAKERS[request.param](tmp_path_factory)


@pytest.fixture(params=[name for name in MAKERS if name != "memory"])
def lossy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """Each engine, for one test, which makes it lose its data."""
    yield from MAKERS[request.param](tmp_path_factory)


@pytest.fixture(scope="session", params=SERVED)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerEngine]:
    """Each engine with its own server, which the test may kill."""
    yield from SERVED[request.param](tmp_path_factory)
