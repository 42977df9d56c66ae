"""Engines and servers for the tests of the bus."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.rigs import engines
from tests.rigs.servers import OLD_NATS

SERVED: dict[str, Callable[[Path], engines.ServerEngine]] = {
    "etcd": engines.EtcdEngine,
    "nats-debian": partial(engines.NatsEngine, program=OLD_NATS),
    "nats": engines.NatsEngine,
}
ENGINES: dict[str, Callable[[Path], engines.Engine]] = {
    "memory": lambda _: engines.MemoryEngine(),
    "sqlite": engines.SqliteEngine,
    "relay": engines.RelayEngine,
    **SERVED,
}


@contextmanager
def _running(name: str, factory: pytest.TempPathFactory) -> Iterator[engines.Engine]:
    made = ENGINES[name](factory.mktemp(name))
    if isinstance(made, engines.ServerEngine):
        made.server.start()
    yield made
    if isinstance(made, engines.ServerEngine):
        made.server.stop()


@pytest.fixture(scope="session", params=ENGINES)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[engines.Engine]:
    """Each engine; its servers run from the first test that needs them to the last."""
    with _running(request.param, tmp_path_factory) as made:
        yield made


@pytest.fixture(params=[name for name in ENGINES if name != "memory"])
def lossy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[engines.Engine]:
    """Each engine, for one test, which makes it lose its data."""
    with _running(request.param, tmp_path_factory) as made:
        yield made


@pytest.fixture(scope="session", params=SERVED)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[engines.Engine]:
    """Each engine with its own server, which the test may kill."""
    with _running(request.param, tmp_path_factory) as made:
        yield made
