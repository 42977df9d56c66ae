"""The actions that people can request from the dashboard for rollouts, and their effects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from shlex import join

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.text import shown_names
from localpuppet.base.formats.times import show_duration
from localpuppet.rollout.rollout_options import Amount
from localpuppet.rollout.rollout_report import ELSEWHERE, PAUSED, RUNNING, RolloutReport
from localpuppet.rollout.state import OPEN, ProgressState, ProgressStates, RolloutState
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
        return "Roll back" if self is RolloutAction.ROLLBACK else self.capitalize()


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


def buttons(report: RolloutReport) -> Sequence[tuple[RolloutAction, bool]]:
    """Return the buttons, each always in the same place, and whether it does something now."""
    possible = courses(report)
    if not possible and report.word not in (RUNNING, PAUSED):
        return ()
    first = possible[0] if possible else RolloutAction.PAUSE
    gives = report.state.began.options.delivery is not None
    others = (RolloutAction.STOP, RolloutAction.ROLLBACK)[: 1 + gives]
    return [(action, action in possible) for action in (first, *others)]


def rollout_consequences(course: RolloutAction, report: RolloutReport) -> tuple[str, ...]:
    """Return the consequences for a rollout, sentence by sentence."""
    if report.word == ELSEWHERE:
        word = RolloutAction.RESUME if course is RolloutAction.CONTINUE else course
        words = f"'localpuppet rollout {word} {report.state.began.id}'"
        return (f"Nothing: another machine continues it. Use {words}.",)
    sentences = [_COURSE_WILL[course]]
    goes_on = report.word in (RUNNING, PAUSED)
    if course is RolloutAction.RESUME:
        if course in courses(report):
            open_ = {*OPEN, ProgressState.NOT_REACHED}
            states = ProgressStates(report.state).nodes.items()
            left = [n for n, state in states if state in open_ or n in report.state.lost]
            none = f"{shown_names(left)} {'has' if len(left) == 1 else 'have'} no result yet."
            sentences.append(none if left else "Every node has a result.")
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


Groups = Sequence[Sequence[NodeName]]
# Fields of the form that are options of 'localpuppet rollout run'.
OPTIONS = ("release", "canary", "window", "max_failures")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStart:
    """A rollout to start.

    Attributes:
        nodes: Its nodes, as names: a query is not evaluated again.
        options: Option of 'localpuppet rollout run' → value, without empty ones.
    """

    nodes: tuple[NodeName, ...]
    options: Mapping[str, str]

    @classmethod
    def read(cls, form: Mapping[str, str], nodes: Sequence[NodeName]) -> "RolloutStart":
        """Return the rollout that a form describes."""
        given = {name: form.get(name, "").strip() for name in OPTIONS}
        options = {name: value for name, value in given.items() if value}
        for name, value in options.items():
            if name == "release":
                ReleasePath.parse(value, where="release")
            elif Amount.parse(value, what=name, minimum=0).percent and name != "max_failures":
                raise InvalidInputError("is a percentage, must be a number of nodes", where=name)
        return cls(nodes=tuple(nodes), options=options)

    @property
    def words(self) -> tuple[str, ...]:
        """The words after 'localpuppet rollout run'."""
        options = (f"--{name.replace('_', '-')}={value}" for name, value in self.options.items())
        return (*self.nodes, *options)

    @property
    def command(self) -> str:
        """The command line that does the same."""
        return f"localpuppet rollout run {join(self.words)}"

    def __str__(self) -> str:
        """Return the request for the log."""
        options = ", ".join(f"{name} {value}" for name, value in self.options.items())
        return f"start a rollout{f' ({options})' if options else ''}"

    @property
    def digest(self) -> str:
        """Identifies nodes and options."""
        return sha256("\n".join(self.words).encode()).hexdigest()

    def consequences(self, groups: Groups, left_out: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the consequences, sentence by sentence, with the plan if it is given."""
        release = self.options.get("release")
        runs = f"take {release} and run it" if release else "run the release that they have"
        nodes = "1 node will" if len(self.nodes) == 1 else f"{len(self.nodes)} nodes will"
        limits = [
            f"{name.replace('_', ' ')} {self.options[name]}"
            for name in OPTIONS[1:]
            if name in self.options
        ]
        return (
            f"{nodes} {runs}{', with ' if limits else ''}{', '.join(limits)}.",
            *(f"Group {number}: {shown_names(names)}." for number, names in enumerate(groups, 1)),
            *(
                (f"Left out, without a running agent: {shown_names(left_out)}.",)
                if left_out
                else ()
            ),
            "A separate process controls the rollout on this machine, in your name, even if this"
            " dashboard ends. You can pause and stop it.",
            "The policies of the nodes decide. If a node is not ready, no node runs.",
        )
