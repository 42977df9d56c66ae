"""The agent's log: lines on standard error, as the journal takes them, and not too many."""

import sys
import time
from collections import Counter, defaultdict, deque

from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.ports import Clock, LineKind

# In WINDOW seconds no more than MOST lines of a kind; what is left out is counted, and told with
# the next line after that: ten thousand triggers that were accepted do not hide the run.
WINDOW = 10.0
MOST = 50
_PRIORITY = {"warning": 4, "info": 6, "debug": 7}


class AgentLog:
    """Writes one line for each thing said.

    In a journal lines carry their priority (`sd-daemon(3)`); on a terminal, the time.

    Args:
        clock: Tells how much time has passed.
        debug: Whether debugging lines are written, and all lines, however many.
    """

    def __init__(self, clock: Clock, *, debug: bool) -> None:
        self._clock = clock
        self._debug = debug
        self._terminal = sys.stderr.isatty()
        self._recent: defaultdict[LineKind, deque[float]] = defaultdict(deque)
        self._left_out: Counter[LineKind] = Counter()

    def info(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Log what happened."""
        self._log("info", text, kind)

    def warning(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Log what an operator should know."""
        self._log("warning", text, kind)

    def debug(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Log a detail for debugging."""
        if self._debug:
            self._log("debug", text, kind)

    def _log(self, level: str, text: str, kind: LineKind) -> None:
        now = self._clock.monotonic()
        self._tell_left_out(now)
        recent = self._recent[kind]
        while recent and now - recent[0] > WINDOW:
            recent.popleft()
        if len(recent) >= MOST and not self._debug:
            self._left_out[kind] += 1
            return
        recent.append(now)
        self._write(level, text)

    def _tell_left_out(self, now: float) -> None:
        for kind, count in list(self._left_out.items()):
            if now - self._recent[kind][0] > WINDOW:
                del self._left_out[kind]
                self._write("warning", f"left out {count} more lines about {kind}")

    def _write(self, level: str, text: str) -> None:
        if self._terminal:
            stamp = time.strftime("%H:%M:%S")
            head = f"{stamp} {'warning: ' if level == 'warning' else ''}"
        else:
            head = f"<{_PRIORITY[level]}>"
        try:
            sys.stderr.write(f"{head}{one_line(text)}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            return  # the reader has gone; the agent goes on
