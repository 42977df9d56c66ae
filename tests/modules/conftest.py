"""Our Puppet modules on a bench of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.bench import Bench, copy_puppet


@pytest.fixture(scope="session")
def puppet_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Puppet's library without what other packages have put into it."""
    return copy_puppet(tmp_path_factory.mktemp("puppet"))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Puppet with our modules, and no agent until the test listens."""
    for name in ("bin", "conf", "var", "public"):
        (tmp_path / name).mkdir()
    made = Bench(tmp_path)
    yield made
    for peer in made.peers:
        peer.close()
