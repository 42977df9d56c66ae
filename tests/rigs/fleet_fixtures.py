"""Fleets of real agents, over each bus.

The contract tests of the bus run on each engine. A fleet runs on one engine, and on the others in
the long proofs.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.rigs.buses import BUSES, SERVED, SHORT, Bus, etcd_three, sqlite
from tests.rigs.fleet import Fleet
from tests.rigs.long import with_sample
from tests.rigs.split_member import Split, two_sides


def fleet_on(directory: Path, bus: Bus, probe: str) -> Iterator[Fleet]:
    """Lend a fleet on a bus."""
    # A socket's name may have 107 bytes: too few for what pytest makes.
    fleet = Fleet(directory, Path(tempfile.mkdtemp(prefix="fleet")), bus, probe)
    yield fleet
    fleet.clean()


@pytest.fixture
def fleet(tmp_path: Path, puppet_probe: str) -> Iterator[Fleet]:
    """Nodes on the bus that needs no server."""
    for bus in sqlite(tmp_path):
        yield from fleet_on(tmp_path, bus, puppet_probe)


@pytest.fixture(params=with_sample(BUSES, "nats"))
def any_fleet(request: pytest.FixtureRequest, tmp_path: Path, puppet_probe: str) -> Iterator[Fleet]:
    """Nodes on each bus, one after the other."""
    for bus in BUSES[request.param](tmp_path):
        yield from fleet_on(tmp_path, bus, puppet_probe)


@pytest.fixture(params=with_sample(SERVED, "etcd"))
def served_fleet(
    request: pytest.FixtureRequest, tmp_path: Path, puppet_probe: str
) -> Iterator[Fleet]:
    """Nodes on each bus that has a server; they notice its outages soon."""
    for bus in SERVED[request.param](tmp_path):
        bus.timeout = SHORT
        yield from fleet_on(tmp_path, bus, puppet_probe)


@pytest.fixture
def lent_fleet(tmp_path: Path, puppet_probe: str) -> Iterator[Callable[[str], Fleet]]:
    """Return what lends nodes on a bus that a test names."""
    with ExitStack() as stack:

        def lend(name: str) -> Fleet:
            bus = stack.enter_context(contextmanager(BUSES[name])(tmp_path))
            return stack.enter_context(contextmanager(fleet_on)(tmp_path, bus, puppet_probe))

        yield lend


@pytest.fixture
def nats_fleet(tmp_path: Path, puppet_probe: str) -> Iterator[Fleet]:
    """Nodes on the current NATS server: no file of the bus is written by an agent."""
    for bus in SERVED["nats"](tmp_path):
        yield from fleet_on(tmp_path, bus, puppet_probe)


@pytest.fixture
def quorum_fleet(tmp_path: Path, puppet_probe: str) -> Iterator[Fleet]:
    """Nodes on three members of etcd; they notice outages soon."""
    for bus in etcd_three(tmp_path):
        bus.timeout = SHORT
        yield from fleet_on(tmp_path, bus, puppet_probe)


@pytest.fixture
def split(puppet_probe: str) -> Iterator[Split]:
    """Yield two nodes on NATS, one of them with an agent in two processes; no agent runs."""
    yield from two_sides(puppet_probe)
