"""The actions that people can request from the dashboard, and the effects of those for nodes.

The dashboard decides nothing: each node's own policy decides about a request.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Self
from uuid import uuid4

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import parse_line, shortened, shown_names
from localpuppet.base.formats.times import parse_duration
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_RUN_TEXT
from localpuppet.fleet.history.history_records import AuditDecision, AuditRecord
from localpuppet.fleet.inventory.presence import NOT_TRUSTED, UNRESPONSIVE, NodeRow

# The action of an audit record that the dashboard makes.
SENT = "send"


class ActionWord(StrEnum):
    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            return cls(text)
        except ValueError as error:
            raise InvalidInputError(f"is not one of {', '.join(cls)}", where="action") from error


class Action(ActionWord):
    """An action of a node, as a word in a URL."""

    TRIGGER = "trigger"
    NOOP = "noop"
    HOLD = "hold"
    ENABLE = "enable"

    @property
    def label(self) -> str:
        return _LABELS[self]


class RolloutAction(ActionWord):
    """An action of a rollout, as a word in a URL."""

    PAUSE = "pause"
    CONTINUE = "continue"
    STOP = "stop"
    ROLLBACK = "rollback"
    RESUME = "resume"
    APPROVE = "approve"

    @property
    def label(self) -> str:
        return "Roll back" if self is RolloutAction.ROLLBACK else self.capitalize()


_LABELS = {
    Action.TRIGGER: "Trigger a run",
    Action.NOOP: "Noop run",
    Action.HOLD: "Put on hold",
    Action.ENABLE: "End own hold",
}
_WILL = {
    Action.TRIGGER: (
        "localpuppet sends each node a trigger in your name. A run of the node's release follows."
    ),
    Action.NOOP: "localpuppet requests a run with --noop: Puppet reports what it would change.",
    Action.HOLD: (
        "No run starts on the node until the hold ends: neither by timer nor by trigger nor by a"
        " Puppet agent. A run that has started continues."
    ),
    Action.ENABLE: "Your hold on the node ends. Holds of other operators remain.",
}
_FOLLOWS = {
    Action.TRIGGER: (
        "Nodes do not reply to triggers: runs appear in the views of the nodes, rejections in the"
        " audit view. A hold keeps a run from starting; a run that has started continues."
    ),
    Action.NOOP: "A hold keeps a run from starting; a run that has started continues.",
}
_COMMANDS = {
    Action.TRIGGER: ("trigger",),
    Action.NOOP: ("runonce", "--noop"),
    Action.HOLD: ("disable",),
    Action.ENABLE: ("enable",),
}
# The action in the node's policy is the command.
NEEDS = {action: words[0] for action, words in _COMMANDS.items()}


class NodeAction(Value):
    """A request for an action of nodes; the length is of a hold, `2h`."""

    action: Action
    nodes: tuple[NodeName, ...]
    message: str = ""
    length: str = ""

    @classmethod
    def read(
        cls, action: Action, nodes: tuple[NodeName, ...], form: Mapping[str, str]
    ) -> "NodeAction":
        if action is not Action.HOLD:
            return cls(action=action, nodes=nodes)
        line = partial(parse_line, what="reason")
        length = form.get("length", "").strip()
        if length:
            parse_duration(length, where="length of the hold")
        return cls(
            action=action, nodes=nodes, message=line(form.get("message", "").strip()), length=length
        )

    def __str__(self) -> str:
        """Return the request for the log."""
        if self.action is not Action.HOLD:
            return str(self.action)
        return f"hold ({f'for {self.length}' if self.length else 'without end'}: {self.message})"

    @property
    def command(self) -> str:
        """Return the command line that does the same."""
        words = ["localpuppet", *_COMMANDS[self.action], *self.nodes]
        if self.action is Action.HOLD:
            words += ["-m", self.message or "REASON"]
            words += ["--for", self.length] if self.length else []
        return shlex.join(words)


class NodeVerdict(StrEnum):
    REFUSED = "refused"
    NO_ANSWER = "no answer"
    SENT = "sent"
    ACCEPTED = "accepted"

    @property
    def good(self) -> bool:
        """Return whether the action may take effect on the node."""
        return self in (NodeVerdict.SENT, NodeVerdict.ACCEPTED)


class ActionResult(Value):
    node: NodeName
    verdict: NodeVerdict
    reason: str = ""


class ActionOutcome(Value):
    """The result of an action, nodes with bad results first.

    `command` does the same, `opposite` takes it back, and `page` shows what comes of it.
    """

    text: str
    results: tuple[ActionResult, ...] = ()
    follows: str = ""
    command: str = ""
    opposite: Action | None = None
    page: str = ""

    @classmethod
    def of_results(cls, results: Iterable[ActionResult]) -> "ActionOutcome":
        """Return the result of a request to nodes."""
        order = list(NodeVerdict)
        in_order = sorted(results, key=lambda result: (order.index(result.verdict), result.node))
        counts = Counter(result.verdict for result in in_order)
        return cls(
            text=", ".join(f"{counts[verdict]} {verdict}" for verdict in order if counts[verdict]),
            results=tuple(in_order),
        )

    @classmethod
    def of_nodes(cls, deed: NodeAction, results: Iterable[ActionResult]) -> "ActionOutcome":
        return replace(
            cls.of_results(results),
            follows=_FOLLOWS.get(deed.action, ""),
            command=deed.command,
            opposite=Action.ENABLE if deed.action is Action.HOLD else Action.HOLD,
        )

    @property
    def line(self) -> str:
        """Return the result in one line, with some reasons."""
        bad = [f"{result.node}: {result.reason}" for result in self.results if result.reason]
        return f"{self.text} ({shown_names(bad)})" if bad else self.text

    def names(self, *, good: bool) -> tuple[NodeName, ...]:
        """Return the nodes on which the action may take effect, or those on which it does not."""
        return tuple(result.node for result in self.results if result.verdict.good == good)

    @property
    def failed(self) -> bool:
        """Return whether the action takes effect on no node."""
        return bool(self.results) and not self.names(good=True)


def sent_record(
    caller: str, asked: str, end: str, about: str, *, at: float, failed: bool
) -> AuditRecord:
    """Return the audit record of what this machine sent: a silent node has no record of it.

    It was sent to nodes (`about`) at some seconds since 1970, and `end` came of it.
    """
    return AuditRecord(
        at=at,
        caller=caller,
        action=SENT,
        subject=shortened(f"{asked}: {end}; {about}", MAX_RUN_TEXT),
        decision=AuditDecision.REFUSED if failed else AuditDecision.ACCEPTED,
        reason="",
        request=str(uuid4()),
    )


def consequences(action: Action, rows: Sequence[NodeRow]) -> tuple[str, ...]:
    """Return the consequences, sentence by sentence."""
    runs, ends = action in (Action.TRIGGER, Action.NOOP), action is Action.ENABLE
    held = (
        "On hold, no run starts before the hold ends"
        if runs
        else "Already on hold, so your hold comes on top or replaces your earlier one"
    )
    doubts: Mapping[str, Callable[[NodeRow], object]] = {
        "Unresponsive, may not receive the request": lambda row: row.state == UNRESPONSIVE,
        "Not trusted, replies are rejected": lambda row: row.state == NOT_TRUSTED,
        held: lambda row: row.holds and not ends,
        "Not on hold, by the last status": lambda row: ends and not row.holds,
        "A run is in progress, the new one follows it": lambda row: runs and row.cause,
    }
    names_by_doubt = {
        doubt: [row.node for row in rows if has(row)] for doubt, has in doubts.items()
    }
    return (
        _WILL[action],
        *(f"{doubt}: {shown_names(names)}." for doubt, names in names_by_doubt.items() if names),
        f"The policy of each node decides: it must allow you the action {NEEDS[action]}.",
    )
