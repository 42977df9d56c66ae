"""The checks that follow a node run: a URL, or a command, with retries.

A service that was just restarted may need a moment, so a check that does not pass is tried again.
It fails after `TRIES` tries, which take up to `TRIES * (TRY + PAUSE)` seconds.

- A URL passes with a status of 2xx. The exchange (`base.http`) follows no redirect and uses no
  proxy, so the named server answers. Only the head of the response is read.
- A command passes with exit code 0. It inherits localpuppet's environment and has no input; its
  output is dropped because it may be long or secret. After the time limit its process group is
  killed; if localpuppet is killed, the kernel kills the command.
"""

import asyncio
import errno
import os
import signal
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from localpuppet.base import http
from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_duration
from localpuppet.base.machine.child import signal_group
from localpuppet.base.machine.processes import mortal
from localpuppet.rollout.site import Check, on_node, shown

TRIES = 5
TRY = 10.0  # seconds for one try
PAUSE = 3.0  # seconds between two tries
AT_ONCE = 32  # checks at a time, over all nodes
MAX_PROBLEM = 300


class Probing:
    """Tries checks from this machine."""

    def __init__(self, *, ca: Path | None) -> None:
        self._client = http.HttpClient(http.HttpRoute(ca=ca, proxy=http.DIRECT, plain=True))
        self._threads = ThreadPoolExecutor(AT_ONCE)

    async def problem(self, check: Check, *, seconds: float) -> str:
        """Try a check and return why it does not pass, one line; empty if it passes."""
        if not isinstance(check, str):
            return await _run(check, seconds)
        loop, deadline = asyncio.get_running_loop(), http.Deadline(seconds)
        try:
            status = await loop.run_in_executor(self._threads, self._ask, check, deadline)
        except (InvalidInputError, http.HttpError) as error:
            return one_line(str(error))
        finally:
            deadline.end()
        if 300 <= status < 400:
            return f"answered {status}, and redirects are not followed"
        return "" if 200 <= status < 300 else f"answered {status}"

    def _ask(self, url: str, deadline: http.Deadline) -> int:
        with self._client.open(http.HttpRequest(url=url), deadline) as answer:
            return answer.status


class CheckRunner:
    def __init__(self, probe: Probing) -> None:
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


async def _run(words: Sequence[str], seconds: float) -> str:
    nothing = asyncio.subprocess.DEVNULL
    try:
        _refuse_no_program(Path(words[0]))
        process = await asyncio.create_subprocess_exec(
            *mortal(words, path=os.environ.get("PATH", os.defpath)),
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,
        )
    except OSError as error:
        return f"cannot be started: {error.strerror}"
    except StateError as error:
        return f"cannot be started: {error}"
    try:
        async with asyncio.timeout(seconds):
            code = await process.wait()
    except TimeoutError:
        return f"did not end within {show_duration(seconds)}"
    finally:
        if process.returncode is None:
            signal_group(process.pid, signal.SIGKILL)  # empty if it has ended just now
            await process.wait()
    if code < 0:
        return f"was killed by signal {-code}"
    return "" if code == 0 else f"exited {code}"


def _refuse_no_program(path: Path) -> None:
    """Raise what the kernel would: what starts the program could say it in words only."""
    if not stat.S_ISREG(path.stat().st_mode) or not os.access(path, os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
