"""The actions that people can request from the dashboard for rollouts, and their effects."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from shlex import join
from typing import TypeVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.text import shown_names
from localpuppet.base.formats.times import show_duration
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.presence import NOT_TRUSTED, ON_HOLD, UNRESPONSIVE, NodeRow
from localpuppet.rollout.rollout_options import (
    NONE,
    Amount,
    Delivery,
    OnFailure,
    PauseAfter,
    RolloutOptions,
    describe_options,
)
from localpuppet.rollout.rollout_report import ELSEWHERE, PAUSED, RUNNING, RolloutReport
from localpuppet.rollout.state import OPEN, ProgressState, ProgressStates, RolloutState
from localpuppet.web.dashboard.actions import RolloutAction

Chosen = TypeVar("Chosen", bound=StrEnum)


# Changes that a confirmation lists.
MOST_CHANGES = 50
_COURSE_WILL = {
    RolloutAction.PAUSE: (
        "No further node starts. Started runs end, and all nodes stay on hold until you continue or"
        " stop the rollout."
    ),
    RolloutAction.CONTINUE: "It continues with its next nodes.",
    RolloutAction.APPROVE: "The node compares again, and runs if it would change nothing else.",
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
        paused = report.state.paused
        is_of_changes = paused is not None and paused.needs_approval and report.state.differing
        waits = RolloutAction.APPROVE if is_of_changes else RolloutAction.CONTINUE
        return (
            waits if report.word == PAUSED else RolloutAction.PAUSE,
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
    elif course is RolloutAction.APPROVE:
        if not state.differing:
            yield "No node waits for an approval."
            return
        turn = min(state.differing)
        difference = state.differing[turn]
        yield f"{turn.node} {difference.reason}."
        yield from (
            f"{one.type}[{one.title}] {one.property}".rstrip()
            for one in difference.others[:MOST_CHANGES]
        )
        if more := difference.others[MOST_CHANGES:]:
            yield f"and {len(more)} more"
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
# Fields of the form that are options of 'localpuppet rollout run'; those in `FLAGS` have no value.
FLAGS = ("noop", "skip_unready")
OPTIONS = (*("release", "canary", "batch", "window", "max_failures", "on_failure", "pause"), *FLAGS)
# What is neither in the plan nor a doubt: a node that a rollout cannot run now.
UNREADY = (UNRESPONSIVE, NOT_TRUSTED, ON_HOLD)


class RolloutStart(Value):
    nodes: tuple[NodeName, ...]
    # Field of the form in `OPTIONS` → what the user chose, without empty ones.
    fields: Mapping[str, str]
    options: RolloutOptions

    @classmethod
    def read(cls, form: Mapping[str, str], nodes: Sequence[NodeName]) -> "RolloutStart":
        fields = {name: text for name in OPTIONS if (text := form.get(name, "").strip())}
        if "release" not in fields and fields.get("on_failure") == OnFailure.ROLLBACK:
            del fields["on_failure"]  # the default of the form, which has nothing to roll back
        for name in ("canary", "window"):
            if fields.get(name) == "0":
                del fields[name]
        amounts: dict[str, Amount] = {}
        for name in ("canary", "batch", "window", "max_failures"):
            if name in fields:
                least, what = int(name != "max_failures"), name.replace("_", " ")
                amounts[name] = Amount.parse(fields[name], what=what, minimum=least)
        for name in ("canary", "window"):
            if name in amounts and amounts[name].percent:
                raise InvalidInputError("is a percentage, must be a number of nodes", where=name)
        release = fields.get("release")
        options = RolloutOptions(
            canary=amounts["canary"].number if "canary" in amounts else 0,
            batch=amounts.get("batch"),
            window=amounts["window"].number if "window" in amounts else None,
            max_failures=amounts.get("max_failures", NONE),
            on_failure=_word(OnFailure, fields.get("on_failure", OnFailure.STOP)),
            pause=tuple(_word(PauseAfter, word) for word in fields.get("pause", "").split()),
            noop="noop" in fields,
            skip_unready="skip_unready" in fields,
            delivery=Delivery(release=ReleasePath.parse(release, where="release"))
            if release
            else None,
        )
        return cls(nodes=tuple(nodes), fields=fields, options=options)

    @property
    def words(self) -> tuple[str, ...]:
        """The words after 'localpuppet rollout run'."""
        words: list[str] = [*self.nodes]
        for name, value in self.fields.items():
            option = f"--{name.replace('_', '-')}"
            values = value.split() if name == "pause" else [value]
            words += [option] if name in FLAGS else [f"{option}={one}" for one in values]
        return tuple(words)

    @property
    def command(self) -> str:
        """The command line that does the same."""
        return f"localpuppet rollout run {join(self.words)}"

    @property
    def subject(self) -> str:
        """Its nodes: `1 node`, `8 nodes`."""
        return "1 node" if len(self.nodes) == 1 else f"{len(self.nodes)} nodes"

    def __str__(self) -> str:
        """Return the request for the log."""
        options = ", ".join(f"{name} {value}" for name, value in self.fields.items())
        return f"start a rollout{f' ({options})' if options else ''}"

    @property
    def digest(self) -> str:
        """Identifies nodes and options."""
        return sha256("\n".join(self.words).encode()).hexdigest()

    def consequences(
        self, groups: Groups, rows: Iterable[NodeRow], left_out: Sequence[str] = ()
    ) -> Iterator[str]:
        """Yield the consequences, sentence by sentence, with the plan if it is given."""
        release = self.fields.get("release")
        runs = f"take {release} and run it" if release else "run the release that they have"
        yield f"{self.subject} will {runs}."
        if described := "; ".join(describe_options(self.options)):
            yield f"{described[0].upper()}{described[1:]}."
        yield from (
            f"Group {number}: {shown_names(names)}." for number, names in enumerate(groups, 1)
        )
        if left_out:
            yield f"Left out, without a running agent: {shown_names(left_out)}."
        unready = [f"{row.node} ({row.state})" for row in rows if row.state in UNREADY]
        if unready and self.options.skip_unready:
            yield f"Not ready by their last status, and left out if so: {shown_names(unready)}."
        elif unready:
            yield f"Not ready by their last status: {shown_names(unready)}."
        yield (
            "A separate process controls the rollout on this machine, in your name, even if this"
            " dashboard ends. You can pause and stop it."
        )
        lacks = "" if self.options.skip_unready else " If a node is not ready, no node runs."
        yield f"The policies of the nodes decide.{lacks}"


def _word(kind: type[Chosen], text: str) -> Chosen:
    try:
        return kind(text)
    except ValueError as error:
        raise InvalidInputError(f"is not one of {', '.join(kind)}", where=text[:40]) from error
