"""A machine with a real systemd, for each test that asks for one."""

from collections.abc import Iterator

import pytest

from tests.rigs.systemd import Machine, acquaint


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
