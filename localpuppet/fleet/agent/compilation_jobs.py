"""Compile catalogs of this node with another release on request, to compare them.

- One compilation runs at a time, in a child process. A reply never waits for Puppet.
- The result has references and parameter names, never values.
- `requests.admission` checks signature and rights; `runs.candidate` compiles.
"""

import asyncio
from collections.abc import Mapping

from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.fleet.agent.agent import RequestedRunResult, WorkRunner
from localpuppet.fleet.agent.jobs import Jobs
from localpuppet.fleet.requests.compile import Compile

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
