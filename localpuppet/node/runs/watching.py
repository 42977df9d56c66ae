"""Follows a running Puppet to its end: its output, the clock, requests to stop.

However much Puppet writes, the clock and the signals are checked. The loop ends when Puppet ends,
or when Puppet survives KILL.
"""

from localpuppet.base.machine.ports import Child, Clock, ProcessEnd, Processes
from localpuppet.node.runs.observer import Observer
from localpuppet.node.runs.run_log import RunLog
from localpuppet.node.runs.stopping import StopDecision, StopStep

POLL = 0.05
# How many chunks are read between two checks of the clock, and at most after Puppet's end.
CHUNKS = 16
LAST_ROUNDS = 64


def watch(
    child: Child,
    log: RunLog,
    stopping: StopDecision,
    *,
    clock: Clock,
    processes: Processes,
    observer: Observer,
) -> ProcessEnd | None:
    """Follow `child` until it has ended; return how, or `None` when KILL did not end it.

    Args:
        child: Puppet.
        log: Takes its output.
        stopping: Decides when to end Puppet; knows when the run began.
        clock: The clock.
        processes: Counts requests to stop.
        observer: Receives output, the time, and notes.
    """
    behind = False
    while True:
        ended = child.wait(0 if behind else POLL)
        behind = _take(child, log, observer)
        if ended is not None:
            for _ in range(LAST_ROUNDS if behind else 0):
                if not _take(child, log, observer):
                    break
            log.take(b"", observer.line, end=True)
            if ended.signal is not None or stopping.verdict is not None:
                child.end(kill=True)  # what it had started does not outlive a broken run
            return ended
        now = clock.monotonic()
        step = stopping.step(now, processes.cancellations())
        if step is StopStep.ABANDON:
            observer.note("Puppet does not end after SIGKILL; the node stays locked until it does")
            return None
        if step is not StopStep.NOTHING:
            reason = stopping.verdict.reason if stopping.verdict else ""
            observer.note(f"{reason}: sending {step.name} to Puppet")
            child.end(kill=step is StopStep.KILL)
        observer.tick(now - stopping.started)


def _take(child: Child, log: RunLog, observer: Observer) -> bool:
    """Read a limited amount of Puppet's output; return whether more may follow."""
    if log.full:
        child.skip()
        return False
    for _ in range(CHUNKS):
        data = child.read()
        if not data:
            return False
        log.take(data, observer.line)
    return True
