"""A machine with a real systemd, for each test that asks for one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.systemd import Machine, acquaint

# Who tests on another Debian tests on that one alone.
collect_ignore = ["test_debian13.py"] if "LOCALPUPPET_DEBIAN" in os.environ else []


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first machine with a run learns of Puppet, for the machines after it."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def machine(kept: Path) -> Iterator[Machine]:
    """A machine that is on, with two nodes that trust each other, and no agent yet."""
    made = Machine()
    try:
        made.boot()
        acquaint(made)
        made.restore_cache(kept)
        yield made
        made.keep_cache(kept)
    finally:
        made.close()
