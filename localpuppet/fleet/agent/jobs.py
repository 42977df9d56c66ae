"""Jobs for requests that take longer than a reply: the requester asks again for the result.

    ask -> `None` … ask -> `None` … ask -> the result

- The number of jobs is limited in total and per caller.
- A result is returned once. If a limit is reached, the oldest unread results are removed; the same
  request then repeats the job.
- One compilation runs at a time, in a child process. A reply never waits for Puppet.
- The result has references and parameter names, never values.
- `requests.admission` checks signature and rights; `runs.candidate` compiles.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from localpuppet.base.errors import BusyError
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.fleet.agent.agent import RequestedRunResult, WorkRunner
from localpuppet.fleet.requests.arguments import Compile

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class _Job(Generic[Outcome]):
    caller: str
    task: "asyncio.Task[Outcome]"


class Jobs(Generic[Outcome]):
    """Jobs of one kind.

    Args:
        what: The plural of the kind, for messages.
        most: The limit of jobs that wait, are running, or have an unread result.
        each: The same limit per caller.
    """

    def __init__(self, what: str, *, most: int, each: int) -> None:
        self._what = what
        self._most = most
        self._each = each
        self._jobs: dict[str, _Job[Outcome]] = {}

    def ask(
        self, key: str, caller: str, do: Callable[[], Coroutine[Any, Any, Outcome]]
    ) -> Outcome | None:
        """Start a job, or return its result; `None` while it is running.

        Args:
            key: Identifies the job: equal requests have equal keys.
            caller: The caller id of the requester.
            do: Executes the job.

        Raises:
            BusyError: Too many jobs wait.
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
                f" {len(self._jobs)} in all: the limit is reached"
            )

    def _is_full(self, caller: str) -> bool:
        return len(self._jobs) >= self._most or self._count(caller) >= self._each

    def _count(self, caller: str) -> int:
        return sum(job.caller == caller for job in self._jobs.values())


MOST, EACH = 8, 2
WORKING: Mapping[str, Json] = {"state": "working"}


class CompilationJobs:
    """Accepts and queues requests for compilations.

    Args:
        runner: Compiles.
        log: The agent's log.
    """

    def __init__(self, runner: WorkRunner[Compile], *, log: Log) -> None:
        self._runner = runner
        self._log = log
        self._one = asyncio.Lock()
        self._jobs: Jobs[Mapping[str, Json] | str] = Jobs("compilations", most=MOST, each=EACH)

    def ask(self, caller: str, args: Compile) -> Mapping[str, Json] | str:
        """Start a compilation, or return its state: `WORKING`, the changes, or the error.

        Raises:
            BusyError: Too many compilations wait.
        """
        job_result = self._jobs.ask(f"{caller} {args.release}", caller, lambda: self._do(args))
        return WORKING if job_result is None else job_result

    async def _do(self, args: Compile) -> Mapping[str, Json] | str:
        async with self._one:
            end = await self._runner.run(args)
        if end.result is not RequestedRunResult.OVER:
            self._log.warning(f"not compiled: {args.release}", kind=LineKind.REQUEST)
            return end.reason or "the catalog was not compiled"
        return {"state": "done", **end.details}
