"""localpuppet's Puppet modules with a Puppet for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.base.machine.own_program import shared_file
from localpuppet.node.puppet.command_line import LeanStart
from localpuppet.node.puppet.installation import LEAN_FLAGS
from tests.rigs.bench import Bench, copy_puppet
from tests.rigs.node import compiled_pack


@pytest.fixture(scope="session")
def puppet_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Puppet's library without the files that other packages add to it."""
    return copy_puppet(tmp_path_factory.mktemp("puppet"))


@pytest.fixture
def bench(tmp_path: Path, puppet_probe: str) -> Iterator[Bench]:
    """Puppet with localpuppet's modules; no agent answers until the test starts one."""
    lean = LeanStart(
        flags=LEAN_FLAGS[-1],
        file=shared_file("lean_start.rb"),
        compiled=compiled_pack(puppet_probe).parent,
        records=False,
    )
    for name in ("bin", "conf", "var", "public"):
        (tmp_path / name).mkdir()
    made = Bench(tmp_path, lean)
    yield made
    for peer in made.peers:
        peer.close()
