"""Catalogs that this node is asked to compile with another release, to see what would change.

Owns: that one is compiled at a time, in a child, and that nobody waits for Puppet in a reply.
Refuses to know: signatures and rights (`requests.admission`), what is compiled (`runs.candidate`).

Invariant: what is told are references and names of parameters, and never a value.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.fleet.agent.jobs import Jobs
from localpuppet.fleet.agent.runner import Fate, RunEnd
from localpuppet.fleet.requests.compile import Compile

MOST, EACH = 8, 2
WORKING: Mapping[str, Json] = {"state": "working"}


class CompilingRunner(Protocol):
    """Compiles; see `agent.fork_runner`."""

    async def run(self, order: Compile) -> RunEnd:
        """Compile the catalogs, and return in `told` what differs; `OVER` where that is known."""
        ...


class Candidates:
    """Where compilations are asked for.

    Args:
        runner: Does them.
        log: What is said of them.
    """

    def __init__(self, runner: CompilingRunner, *, log: Log) -> None:
        self._runner = runner
        self._log = log
        self._one = asyncio.Lock()
        self._jobs: Jobs[Mapping[str, Json] | str] = Jobs("compilations", most=MOST, each=EACH)

    def ask(self, caller: str, args: Compile) -> Mapping[str, Json] | str:
        """Begin a compilation, or return where it is: `WORKING`, the changes, or why not.

        Raises:
            BusyError: Too many wait.
        """
        found = self._jobs.ask(f"{caller} {args.release}", caller, lambda: self._do(args))
        return WORKING if found is None else found

    async def _do(self, args: Compile) -> Mapping[str, Json] | str:
        async with self._one:
            end = await self._runner.run(args)
        if end.fate is not Fate.OVER:
            self._log.warning(f"not compiled: {args.release}", kind=LineKind.REQUEST)
            return end.reason or "the catalog was not compiled"
        return {"state": "done", **end.told}
