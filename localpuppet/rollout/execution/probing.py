"""Does a check once: asks a URL, or runs a command as whoever rolls out.

Owns: the connection, the process, and that both are gone when the time is over. Refuses to know:
which checks there are, and how often one is tried.

- A URL passes with a status of 2xx. No redirect is followed and no proxy asked: what answers is
  what was named. Nothing but the head of the answer is read, whose size `http.client` bounds.
- A command passes with exit code 0. It gets our environment, reads nothing, and its output is
  dropped: it may be long, or secret. One that takes too long is killed, with its process group;
  where we are killed, the kernel kills it.
"""

import asyncio
import errno
import http.client
import os
import signal
import socket
import stat
import urllib.parse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet import __version__
from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_duration
from localpuppet.base.machine.anchors import tls_context
from localpuppet.base.machine.confinement import mortal

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from localpuppet.rollout.plans.check import Check

AT_ONCE = 32  # URLs that are asked at a time
_OURS = {"User-Agent": f"localpuppet/{__version__}", "Connection": "close"}


class Probing:
    """Does checks of this machine's.

    Args:
        ca: PEM file with the authorities that servers are trusted by; `None` for the system's.
    """

    def __init__(self, *, ca: Path | None) -> None:
        self._ca = ca
        self._context: ssl.SSLContext | None = None
        # A thread that waits for a name server cannot be ended, and is not to keep others waiting.
        self._threads = ThreadPoolExecutor(AT_ONCE)

    async def problem(self, check: "Check", *, seconds: float) -> str:
        """Do a check once; see `checking.Probe`."""
        if isinstance(check, str):
            return await self._ask(check, seconds)
        return await _run(check, seconds)

    async def _ask(self, url: str, seconds: float) -> str:
        question = _Question(url, seconds, self._tls)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                status = await loop.run_in_executor(self._threads, question.ask)
        except TimeoutError:
            return f"did not answer within {show_duration(seconds)}"
        except InvalidInputError as error:
            return one_line(str(error))
        except OSError as error:
            return one_line(error.strerror or str(error)) or type(error).__name__
        except (ValueError, http.client.HTTPException) as error:
            # What these say repeats the answer.
            return f"does not speak http: {type(error).__name__}"
        finally:
            question.cut()
        if 300 <= status < 400:
            return f"answered {status}, and redirects are not followed"
        return "" if 200 <= status < 300 else f"answered {status}"

    def _tls(self) -> "ssl.SSLContext":
        if self._context is None:
            self._context = tls_context(self._ca)
        return self._context


class _Question:
    """One GET, in a thread; another one can cut it short.

    Args:
        url: An http or https URL.
        seconds: The longest that the server may say nothing.
        tls: Returns what verifies servers.
    """

    def __init__(self, url: str, seconds: float, tls: "Callable[[], ssl.SSLContext]") -> None:
        self._url = url
        self._seconds = seconds
        self._tls = tls
        self._line: socket.socket | None = None
        self._over = False

    def ask(self) -> int:
        """Return the status of the answer.

        Raises:
            OSError: The server cannot be reached, is not trusted, or says nothing.
            ValueError: The URL, or the answer, cannot be.
            http.client.HTTPException: What answers does not speak http.
            InvalidInputError: The file of authorities is refused.
        """
        parts = urllib.parse.urlsplit(self._url)
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        host = parts.hostname or ""
        with socket.create_connection((host, port), timeout=self._seconds) as plain:
            # TLS takes the socket over; the copy is the same connection.
            self._line = plain.dup()
            if self._over:
                raise TimeoutError
            wire = self._tls().wrap_socket(plain, server_hostname=host) if secure else plain
            with wire:
                connection = http.client.HTTPConnection(host, port)
                connection.sock = wire
                target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                connection.request("GET", target, headers={**_OURS, "Host": parts.netloc})
                return connection.getresponse().status

    def cut(self) -> None:
        """End the connection, whatever it waits for."""
        self._over = True
        if self._line is not None:
            with suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)
            self._line.close()


async def _run(words: "Sequence[str]", seconds: float) -> str:
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
            with suppress(ProcessLookupError):  # it has ended by itself just now
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if code < 0:
        return f"was killed by signal {-code}"
    return "" if code == 0 else f"exited {code}"


def _refuse_no_program(path: Path) -> None:
    """Raise what the kernel would: what starts the program could say it in words only."""
    if not stat.S_ISREG(path.stat().st_mode) or not os.access(path, os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
