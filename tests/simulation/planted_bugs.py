"""Bugs of coalescing and of chains that somebody might write: the tests must find each."""

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.triggers.cause import RunCause
from localpuppet.fleet.triggers.chain import Loop, next_path
from localpuppet.fleet.triggers.coalescing import (
    Batch,
    Coalescer,
    CoalescerStep,
    DroppedCause,
    Path,
)


class ForgetsWhatArrivesDuringARun(Coalescer):
    """Takes the run that is on for an answer."""

    def accept(self, cause: RunCause) -> None:
        if self.running is not None:
            self.running.add(cause)
        else:
            super().accept(cause)


class RunsTwoAtOnce(Coalescer):
    """Does not look whether a run is on."""

    def step(self, now: float, *, held: str | None) -> CoalescerStep:
        if held is None and self.waiting is not None:
            self.running = None
        return super().step(now, held=held)


class OneRunForEachCause(Coalescer):
    """A queue, as the predecessor had one."""

    def step(self, now: float, *, held: str | None) -> CoalescerStep:
        waiting = self.waiting
        step = super().step(now, held=held)
        if step.start is not None and waiting is not None and len(waiting) > 1:
            first, *others = waiting._spelt.values()
            self.running = Batch()
            self.running.add(first)
            for cause in others:
                self._wait(cause)
            return CoalescerStep(start=self.running)
        return step


class ExpiresInSilence(Coalescer):
    """Lets causes go on hold, and says nothing."""

    def step(self, now: float, *, held: str | None) -> CoalescerStep:
        step = super().step(now, held=held)
        return step if held is None else CoalescerStep()


class DropsWhatItPutsBack(Coalescer):
    """Forgets that a run did not start."""

    def put_back(self) -> None:
        super().put_back()
        self.waiting = None


class ForgetsWhatCameMeanwhile(Coalescer):
    """Puts causes back in the place of those that have come since."""

    def put_back(self) -> None:
        self.waiting = None
        super().put_back()


class ExpiresAllAtOnce(Coalescer):
    """Drops every cause as soon as one is late."""

    def step(self, now: float, *, held: str | None) -> CoalescerStep:
        step = super().step(now, held=held)
        if not step.dropped or self.waiting is None:
            return step
        others = tuple(DroppedCause(id=cause, reason="late") for cause in self.waiting.ids)
        self.waiting = None
        return CoalescerStep(dropped=step.dropped + others)


class NeverSettles(Coalescer):
    """Runs again for what was served."""

    def ended(self) -> tuple[str, ...]:
        self.put_back()
        return ()


class RestoresHalf(Coalescer):
    """Remembers only the newest cause over a restart."""

    @classmethod
    def restore(cls, causes):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN206
        return super().restore(list(causes)[-1:])


def always_fresh(paths: object, *, me: NodeName, receiver: NodeName) -> Path | Loop:
    """Begins a chain anew with each message: a circle never stops."""
    return (me,)


def mixes(paths: tuple[Path, ...], *, me: NodeName, receiver: NodeName) -> Path | Loop:
    """Takes any cause for a beginning as soon as one cause of the run is none in the path."""
    return next_path(paths, me=me, receiver=receiver) if len(paths) == 1 else (me,)


def ignores_the_receiver(
    paths: tuple[Path, ...], *, me: NodeName, receiver: NodeName
) -> Path | Loop:
    """Leaves it to the receiver to notice the loop."""
    return (*paths[0], me)
