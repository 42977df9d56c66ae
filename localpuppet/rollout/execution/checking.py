"""Does the checks that follow a node's run: several at a time, each again until it passes.

Owns: how often a check is tried, and what is said of one that does not pass. Refuses to know: how
a URL is asked and a command run (`probing`).

What has just been restarted is not up at once, so a check that does not pass is tried again; it
fails when it has not passed in `TRIES` tries, which end within `TRIES * (TRY + PAUSE)` seconds once
its turn has come.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from localpuppet.base.formats.names import NodeName
from localpuppet.rollout.plans.check import Check, on_node, shown

TRIES = 5
TRY = 10.0  # seconds for one try
PAUSE = 3.0  # seconds between two tries
AT_ONCE = 32  # checks tried at a time, of all nodes
MAX_PROBLEM = 300


class Probe(Protocol):
    """What does one check once; implementation: `orchestrator.rollout.probing`."""

    async def problem(self, check: Check, *, seconds: float) -> str:
        """Return why a check does not pass, one line; empty where it does.

        Args:
            check: The check of one node, without placeholders.
            seconds: When it has failed if it has not passed.
        """
        ...


class Checking:
    """Does checks.

    Args:
        probe: Does one once.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def problem(self, node: NodeName, checks: Sequence[Check]) -> str:
        """Return which checks of a node do not pass, and why, one line; empty where all pass."""
        tries = [self._one(on_node(check, node)) for check in dict.fromkeys(checks)]
        found = [problem for problem in await asyncio.gather(*tries) if problem]
        if not found:
            return ""
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return f"check {found[0][:MAX_PROBLEM]}{more}"

    async def _one(self, check: Check) -> str:
        problem = ""
        for number in range(TRIES):
            if number:
                await asyncio.sleep(PAUSE)
            async with self._slots:
                problem = await self._probe.problem(check, seconds=TRY)
            if not problem:
                return ""
        return f"{shown(check)}: {problem}, {TRIES} times"
