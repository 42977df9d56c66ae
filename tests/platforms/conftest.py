"""A machine with a real systemd, for each test that asks for one."""

import os
from collections.abc import Iterator

import pytest

from tests.rigs.systemd import Machine, acquaint

# Who tests on another Debian tests on that one alone.
collect_ignore = ["test_debian13.py"] if "LOCALPUPPET_DEBIAN" in os.environ else []


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A machine that is on, with two nodes that trust each other, and no agent yet."""
    made = Machine()
    try:
        made.boot()
        acquaint(made)
        yield made
    finally:
        made.close()
