"""Starts the event loop for commands; no other module does."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from localpuppet.base.errors import first_error

_Result = TypeVar("_Result")


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end; of a group of errors, raise the first."""
    try:
        return asyncio.run(work)
    except BaseExceptionGroup as group:
        raise first_error(group) from group
