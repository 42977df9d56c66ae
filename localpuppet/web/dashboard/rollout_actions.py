"""The actions that people can request from the dashboard for rollouts, and their effects."""

from collections.abc import Iterator

from localpuppet.base.formats.text import shown_names
from localpuppet.base.formats.times import show_duration
from localpuppet.rollout.execution.report import ELSEWHERE, PAUSED, RUNNING, RolloutReport
from localpuppet.rollout.execution.state import RolloutState
from localpuppet.web.dashboard.actions import ActionWord


class RolloutAction(ActionWord):
    """An action of a rollout, as a word in a URL."""

    PAUSE = "pause"
    CONTINUE = "continue"
    STOP = "stop"
    ROLLBACK = "rollback"
    RESUME = "resume"

    @property
    def label(self) -> str:
        """Return the label of its button."""
        return _LABELS[self]


_LABELS = {
    RolloutAction.PAUSE: "Pause the rollout",
    RolloutAction.CONTINUE: "Continue the rollout",
    RolloutAction.STOP: "Stop the rollout",
    RolloutAction.ROLLBACK: "Roll the release back",
    RolloutAction.RESUME: "Resume the rollout",
}
_COURSE_WILL = {
    RolloutAction.PAUSE: (
        "No further node starts. Started runs end, and all nodes stay on hold until you continue or"
        " stop the rollout."
    ),
    RolloutAction.CONTINUE: "It continues with its next nodes.",
    RolloutAction.STOP: (
        "No further node starts. Started runs end first. Then the rollout releases its nodes."
    ),
    RolloutAction.ROLLBACK: (
        "No further node starts. Started runs end first. Then the nodes that took the release"
        " return to their last good run before it, the last group first."
    ),
    RolloutAction.RESUME: (
        "A separate process continues it on this machine, in your name, even if this dashboard"
        " ends. Started runs are not repeated: their nodes report the results."
    ),
}


def courses(report: RolloutReport) -> tuple[RolloutAction, ...]:
    """Return the possible actions of a rollout in its state."""
    if report.word == ELSEWHERE:
        return ()
    if report.word in (RUNNING, PAUSED):
        if report.state.stopped is not None:
            return ()  # it ends as soon as its running nodes have ended
        gives = report.state.began.options.delivery is not None and not report.state.goes_back
        return (
            RolloutAction.CONTINUE if report.word == PAUSED else RolloutAction.PAUSE,
            RolloutAction.STOP,
            *((RolloutAction.ROLLBACK,) if gives else ()),
        )
    resumable = report.state.over is None or report.state.resumable
    return (RolloutAction.RESUME,) if resumable else ()


def rollout_consequences(course: RolloutAction, report: RolloutReport) -> tuple[str, ...]:
    """Return the consequences for a rollout, sentence by sentence.

    Args:
        course: The action.
        report: The rollout's report.
    """
    if report.word == ELSEWHERE:
        words = f"'localpuppet rollout {course} {report.state.began.id}'"
        return (f"Nothing: another machine continues it. Use {words}.",)
    sentences = [_COURSE_WILL[course]]
    goes_on = report.word in (RUNNING, PAUSED)
    if course is RolloutAction.RESUME:
        if course in courses(report):
            left = sum(result is None for result in report.state.results().values())
            sentences.append(f"{left} node{'s have' if left != 1 else ' has'} no result yet.")
            sentences.append("The policies of the nodes decide, as when the rollout started.")
        elif goes_on:
            sentences.append("A process runs it already.")
        else:
            sentences.append(f"It has ended: {report.word}.")
    elif not goes_on:
        sentences.append(
            f"It is {report.word}: no process is running that could receive the command."
        )
    else:
        sentences += _of_command(course, report)
    return tuple(sentences)


def _of_command(course: RolloutAction, report: RolloutReport) -> Iterator[str]:
    """Yield the consequences of a command for a rollout that a process controls."""
    state, why = report.state, report.why.removeprefix("paused ")
    if course is RolloutAction.ROLLBACK:
        yield from _goes_back(state)
    elif course is RolloutAction.CONTINUE and report.word != PAUSED:
        yield "It does not wait for a command."
    elif course is RolloutAction.CONTINUE:
        yield f"It is paused: {why}."
        if state.paused is not None and not state.paused.requested_by:
            yield "Continuing it accepts its failures so far."
    elif course is RolloutAction.PAUSE and report.word == PAUSED:
        yield f"It is paused already: {why}."
    elif course is RolloutAction.PAUSE:
        longest = show_duration(state.began.options.pause_at_most)
        yield f"Without a decision within {longest} it stops."


def _goes_back(state: RolloutState) -> tuple[str, ...]:
    """Return the consequences of taking back a release, sentence by sentence."""
    delivery = state.began.options.delivery
    if delivery is None:
        return ("It gave no node a release: there is nothing to roll back.",)
    if state.goes_back:
        return ("Its nodes roll back already.",)
    names = sorted(state.took)
    if not names:
        return (f"No node has taken {delivery.release} yet.",)
    does = "has" if len(names) == 1 else "have"
    return (
        f"{shown_names(names)} {does} taken {delivery.release}, or may have: each runs once more.",
        "Resources that the earlier release does not manage stay as they are.",
        "The rollout ends then, and you cannot resume it.",
    )
