"""The log of a service, the agent or the dashboard: one line for each event, on standard error.

The dashboard loads this file and nothing else of an agent.
"""

import os
import sys
import time
from collections import Counter, defaultdict, deque

from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.ports import Clock, LineKind

# At most MOST lines of a kind are written within WINDOW seconds. The others are counted, and the
# count is logged later: ten thousand accepted triggers must not hide the run.
WINDOW = 10.0
MOST = 50
_PRIORITY = {"warning": 4, "info": 6, "debug": 7}


class ServiceLog:
    """Writes one line for each event; debug lines, and those above the limit, only with `debug`.

    Lines for the journal have their priority (`sd-daemon(3)`), others the time.
    """

    def __init__(self, clock: Clock, *, debug: bool) -> None:
        self._clock = clock
        self._debug = debug
        self._terminal = sys.stderr.isatty()
        self._to_journal = _is_journal(os.environ.get("JOURNAL_STREAM", ""))
        self._recent: defaultdict[LineKind, deque[float]] = defaultdict(deque)
        self._left_out: Counter[LineKind] = Counter()

    def info(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        self._log("info", text, kind)

    def warning(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Log an event that an operator should know."""
        self._log("warning", text, kind)

    def debug(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Log a detail for debugging."""
        if self._debug:
            self._log("debug", text, kind)

    def _log(self, level: str, text: str, kind: LineKind) -> None:
        now = self._clock.monotonic()
        self._log_left_out(now)
        recent = self._recent[kind]
        while recent and now - recent[0] > WINDOW:
            recent.popleft()
        if len(recent) >= MOST and not self._debug:
            self._left_out[kind] += 1
            return
        recent.append(now)
        self._write(level, text)

    def _log_left_out(self, now: float) -> None:
        for kind, count in list(self._left_out.items()):
            if now - self._recent[kind][0] > WINDOW:
                del self._left_out[kind]
                self._write("warning", f"left out {count} more lines about {kind}")

    def _write(self, level: str, text: str) -> None:
        if self._to_journal:
            head = f"<{_PRIORITY[level]}>"
        else:
            stamp = time.strftime("%H:%M:%S" if self._terminal else "%Y-%m-%d %H:%M:%S")
            head = f"{stamp} {'warning: ' if level == 'warning' else ''}"
        try:
            sys.stderr.write(f"{head}{one_line(text)}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            return  # the reader is gone; the service continues


def _is_journal(stream: str) -> bool:
    """Return whether standard error is the journal's `DEVICE:INODE` of `JOURNAL_STREAM`."""
    try:
        status = os.fstat(2)
    except OSError:  # it is closed
        return False
    return stream == f"{status.st_dev}:{status.st_ino}"
