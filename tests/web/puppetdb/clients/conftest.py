"""Three real nodes, the API beside them, and the clients that `scripts/clients` fetches."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.buses import sqlite
from tests.rigs.fleet_fixtures import fleet_on
from tests.web.dashboard.browser.conftest import driver
from tests.web.puppetdb.clients.real_nodes import RealNodes

__all__ = ["driver"]


@pytest.fixture(scope="session")
def clients_python(clients: Path) -> Path:
    """Return the Python that has Puppetboard and pypuppetdb."""
    return clients / "python" / "bin" / "python"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, puppet_probe: str) -> Iterator[RealNodes]:
    directory = tmp_path_factory.mktemp("site")
    for bus in sqlite(directory):
        for fleet in fleet_on(directory, bus, puppet_probe):
            nodes = RealNodes(fleet)
            nodes.happens()
            yield nodes
            nodes.end()


@pytest.fixture(scope="module")
def api(nodes: RealNodes) -> str:
    """Start the API; return its address."""
    return nodes.serve()
