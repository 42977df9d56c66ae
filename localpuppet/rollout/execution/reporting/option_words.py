"""The options of a rollout in words, for people."""

from collections.abc import Iterator

from localpuppet.base.formats.times import show_duration
from localpuppet.rollout.execution.amount import Amount
from localpuppet.rollout.execution.options import (
    NONE,
    PAUSE_AT_MOST,
    TIMEOUT,
    OnFailure,
    PauseAfter,
    RolloutOptions,
)
from localpuppet.rollout.plans.check import shown

_ON_FAILURE = {
    OnFailure.PAUSE: "pauses after too many failures",
    OnFailure.ROLLBACK: "rolls the release back after too many failures",
}
_PAUSE = {
    PauseAfter.CANARIES: "pauses after the canaries of each group",
    PauseAfter.GROUPS: "pauses after each group",
}


def describe_options(options: RolloutOptions) -> tuple[str, ...]:
    """Return a phrase for each option that differs from the default, without the release."""
    return (*_pace(options), *_failures(options), *_runs(options))


def _pace(options: RolloutOptions) -> Iterator[str]:
    if options.canary:
        noun = "canary" if options.canary == 1 else "canaries"
        yield f"{options.canary} {noun} in each group"
    if options.batch is not None:
        yield f"batches of {_nodes(options.batch)}"
    if options.window is not None:
        yield f"at most {_count(options.window)} at a time"
    if options.one_at_a_time_by is not None:
        yield f"one value of {options.one_at_a_time_by} at a time"
    if options.until is not None:
        yield f"starts no run that would end after {options.until:%Y-%m-%d %H:%M UTC}"


def _failures(options: RolloutOptions) -> Iterator[str]:
    if options.max_failures != NONE:
        yield f"{_nodes(options.max_failures)} may fail"
    if options.on_failure in _ON_FAILURE:
        yield _ON_FAILURE[options.on_failure]
    yield from (_PAUSE[point] for point in options.pause)
    if options.pause_at_most != PAUSE_AT_MOST:
        yield f"stops after a pause of {show_duration(options.pause_at_most)}"
    if options.investigate is not None:
        yield f"keeps failed nodes on hold for {show_duration(options.investigate)}"
    if options.skip_unready:
        yield "skips nodes that are not ready"
    yield from (f"check after each run: {shown(check)}" for check in options.checks)


def _runs(options: RolloutOptions) -> Iterator[str]:
    if options.noop:
        yield "changes nothing"
    if options.tags:
        yield f"only resources tagged {', '.join(options.tags)}"
    if options.timeout != TIMEOUT:
        yield f"waits at most {show_duration(options.timeout)} for each run"
    if options.delivery is not None and options.delivery.allow_older:
        yield "accepts a release that is older than that of a node"


def _nodes(amount: Amount) -> str:
    return f"{amount} of the nodes" if amount.percent else _count(amount.number)


def _count(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"
