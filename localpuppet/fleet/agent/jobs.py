"""Jobs that requests ask for and that take longer than a reply: told when they are asked for again.

    ask -> `None` … ask -> `None` … ask -> what came of it

Owns: how many jobs may wait, in all and of one caller. Refuses to know: what they do.

Invariant: an outcome is told once; of what nobody asks about again the oldest are forgotten, and
asked for once more that is done once more.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from localpuppet.base.errors import BusyError

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class _Job(Generic[Outcome]):
    caller: str
    task: "asyncio.Task[Outcome]"


class Jobs(Generic[Outcome]):
    """Jobs of one kind.

    Args:
        what: What they are called, for messages.
        most: How many wait, go on, or were done and not asked about yet.
        each: How many of these are one caller's.
    """

    def __init__(self, what: str, *, most: int, each: int) -> None:
        self._what = what
        self._most = most
        self._each = each
        self._jobs: dict[str, _Job[Outcome]] = {}

    def ask(
        self, key: str, caller: str, do: Callable[[], Coroutine[Any, Any, Outcome]]
    ) -> Outcome | None:
        """Begin a job, or return what came of it; `None` as long as it is not over.

        Args:
            key: What is the same for the same job.
            caller: Who asks.
            do: Does it.

        Raises:
            BusyError: Too many wait.
        """
        job = self._jobs.get(key)
        if job is None:
            self._make_room(caller)
            self._jobs[key] = _Job(caller, asyncio.create_task(do()))
            return None
        if not job.task.done():
            return None
        del self._jobs[key]
        return job.task.result()

    def _make_room(self, caller: str) -> None:
        for key in [key for key, job in self._jobs.items() if job.task.done()]:
            if self._is_full(caller):
                del self._jobs[key]
        if self._is_full(caller):
            raise BusyError(
                f"{self._count(caller)} {self._what} of {caller} wait on this node,"
                f" {len(self._jobs)} in all: no more are taken"
            )

    def _is_full(self, caller: str) -> bool:
        return len(self._jobs) >= self._most or self._count(caller) >= self._each

    def _count(self, caller: str) -> int:
        return sum(job.caller == caller for job in self._jobs.values())
