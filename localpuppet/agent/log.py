"""The agent's log: lines on standard error, as the journal takes them, and not too many."""

import sys
import time
from collections import Counter, defaultdict, deque

from localpuppet.formats.text import one_line
from localpuppet.machine.ports import Clock

# In WINDOW seconds no more than MOST lines of a kind; what is left out is counted, and told with
# the next line after that. By its first word, so that ten thousand triggers that were accepted do
# not hide the run; and an "a" behind it, so that what strangers send ("dropped a trigger") does not
# hide what becomes of what was accepted ("dropped web01.example.com/UUID"), which is said for
# certain.
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
        self._recent: defaultdict[str, deque[float]] = defaultdict(deque)
        self._left_out: Counter[str] = Counter()

    def info(self, text: str) -> None:
        """Say what happened."""
        self._say("info", text)

    def warning(self, text: str) -> None:
        """Say what an operator should know."""
        self._say("warning", text)

    def debug(self, text: str) -> None:
        """Say what nobody needs unless he looks for it."""
        if self._debug:
            self._say("debug", text)

    def _say(self, kind: str, text: str) -> None:
        now = self._clock.monotonic()
        self._tell_left_out(now)
        word, _, rest = text.partition(" ")
        kind_of = f"{word} a" if rest.startswith("a ") else word
        recent = self._recent[kind_of]
        while recent and now - recent[0] > WINDOW:
            recent.popleft()
        if len(recent) >= MOST and not self._debug:
            self._left_out[kind_of] += 1
            return
        recent.append(now)
        self._write(kind, text)

    def _tell_left_out(self, now: float) -> None:
        for kind_of, count in list(self._left_out.items()):
            if now - self._recent[kind_of][0] > WINDOW:
                del self._left_out[kind_of]
                self._write("warning", f"left out {count} more lines that begin with '{kind_of}'")

    def _write(self, kind: str, text: str) -> None:
        if self._terminal:
            stamp = time.strftime("%H:%M:%S")
            head = f"{stamp} {'warning: ' if kind == 'warning' else ''}"
        else:
            head = f"<{_PRIORITY[kind]}>"
        try:
            sys.stderr.write(f"{head}{one_line(text)}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            return  # the reader has gone; the agent goes on
