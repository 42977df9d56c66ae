"""A machine with a real systemd for each test."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.systemd import Machine, acquaint

# A session on another Debian runs only the tests of that Debian.
collect_ignore = ["test_other_debians.py"] if "LOCALPUPPET_DEBIAN" in os.environ else []


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The answers of Puppet to the first machine, for the machines after it."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def machine(kept: Path) -> Iterator[Machine]:
    """A booted machine with two nodes that trust each other and no agent."""
    made = Machine()
    try:
        made.boot()
        acquaint(made)
        made.restore_cache(kept)
        yield made
        made.keep_cache(kept)
    finally:
        made.close()
