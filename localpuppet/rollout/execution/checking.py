"""Run the checks that follow a node run, several at a time, with retries.

A service that was just restarted may need a moment, so a check that does not pass is tried again.
It fails after `TRIES` tries, which take up to `TRIES * (TRY + PAUSE)` seconds.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from localpuppet.base.formats.names import NodeName
from localpuppet.rollout.plans.check import Check, on_node, shown

TRIES = 5
TRY = 10.0  # seconds for one try
PAUSE = 3.0  # seconds between two tries
AT_ONCE = 32  # checks at a time, over all nodes
MAX_PROBLEM = 300


class Probe(Protocol):
    """Tries one check once; implementation: `probing.Probing`."""

    async def problem(self, check: Check, *, seconds: float) -> str:
        """Try a check and return why it does not pass, one line; empty if it passes."""


class CheckRunner:
    """Runs checks."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def problem(self, node: NodeName, checks: Sequence[Check]) -> str:
        """Run the checks of a node and return the first failure, one line; empty if all pass."""
        tries = [self._run_check(on_node(check, node)) for check in dict.fromkeys(checks)]
        problems = [problem for problem in await asyncio.gather(*tries) if problem]
        if not problems:
            return ""
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return f"check {problems[0][:MAX_PROBLEM]}{more}"

    async def _run_check(self, check: Check) -> str:
        problem = ""
        for number in range(TRIES):
            if number:
                await asyncio.sleep(PAUSE)
            async with self._slots:
                problem = await self._probe.problem(check, seconds=TRY)
            if not problem:
                return ""
        return f"{shown(check)}: {problem}, {TRIES} times"
