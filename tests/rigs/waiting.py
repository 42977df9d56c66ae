"""Waiting for what other processes do, with an end."""

import time
from collections.abc import Callable
from typing import Any

# Enough for anything that ends at all on a busy machine.
PATIENCE = 60.0


def wait_until(condition: Callable[[], Any], what: Callable[[], str]) -> Any:
    """Return the first true value of `condition`; `what` says what was waited for in vain."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)
    return value
