"""Plausible bugs of coalescing and of chains: the tests must find each."""

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.triggers.cause import RunCause
from localpuppet.fleet.triggers.coalescing import (
    Batch,
    Coalescer,
    CoalescerStep,
    DroppedCause,
    Path,
)
from localpuppet.fleet.triggers.trigger_admission import Loop, next_path


class ForgetsWhatArrivesDuringARun(Coalescer):
    """Treats a new cause as one of the active run."""

    def accept(self, cause: RunCause) -> None:
        if self.running is not None:
            self.running.add(cause)
        else:
            super().accept(cause)


class RunsTwoAtOnce(Coalescer):
    """Does not check for an active run."""

    def step(self, now: float, *, held: str | None) -> CoalescerStep:
        if held is None and self.waiting is not None:
            self.running = None
        return super().step(now, held=held)


class OneRunForEachCause(Coalescer):
    """A queue, as in the predecessor."""

    def step(self, now: float, *, held: str | None) -> CoalescerStep:
        waiting = self.waiting
        step = super().step(now, held=held)
        if step.start is not None and waiting is not None and len(waiting) > 1:
            first, *others = waiting._spelt.values()
            self.running = Batch()
            self.running.add(first)
            for cause in others:
                self.accept(cause)
            return CoalescerStep(start=self.running)
        return step


class ExpiresInSilence(Coalescer):
    """Drops causes during a hold without a log line."""

    def step(self, now: float, *, held: str | None) -> CoalescerStep:
        step = super().step(now, held=held)
        return step if held is None else CoalescerStep()


class DropsWhatItPutsBack(Coalescer):
    """Forgets that a run did not start."""

    def put_back(self) -> None:
        super().put_back()
        self.waiting = None


class ForgetsWhatCameMeanwhile(Coalescer):
    """Replaces the causes that arrived meanwhile by those that it puts back."""

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
    """Runs again for causes that had their run."""

    def ended(self) -> tuple[str, ...]:
        self.put_back()
        return ()


class RestoresHalf(Coalescer):
    """Restores only the newest cause after a restart."""

    @classmethod
    def restore(cls, causes):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN206
        return super().restore(list(causes)[-1:])


def always_fresh(paths: object, *, me: NodeName, receiver: NodeName) -> Path | Loop:
    """Starts a new chain with each message, so that a circle never stops."""
    return (me,)


def mixes(paths: tuple[Path, ...], *, me: NodeName, receiver: NodeName) -> Path | Loop:
    """Starts a new chain if the run has several causes."""
    return next_path(paths, me=me, receiver=receiver) if len(paths) == 1 else (me,)


def ignores_the_receiver(
    paths: tuple[Path, ...], *, me: NodeName, receiver: NodeName
) -> Path | Loop:
    """Relies on the receiver to notice the loop."""
    return (*paths[0], me)
