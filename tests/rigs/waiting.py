"""Waiting for what other processes do, with an end."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from localpuppet.base.errors import UnavailableError

T = TypeVar("T")

# Enough for anything that ends at all on a busy machine: with a load of 30 on two cores, the first
# run of a node took longer than 60 seconds.
PATIENCE = 300.0


def wait_until(condition: Callable[[], Any], what: Callable[[], str]) -> Any:
    """Return the first true value of `condition`; `what` describes a wait that fails."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)
    return value


async def answered(call: Callable[[], Awaitable[T]]) -> T:
    """Return the first answer to a call: an election or a reload may outlast some calls."""
    while True:
        with suppress(UnavailableError):
            return await call()
        await asyncio.sleep(0.1)
