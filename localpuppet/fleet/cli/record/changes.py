"""Shows, for `why`, which changes of other nodes caused a run."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from localpuppet.base.errors import StateError
from localpuppet.fleet.triggers.cause import AnswerChange, ChangeKind, RunCause
from localpuppet.node.cli import render

_BECAME = {
    ChangeKind.JOINED: "is in the answer now",
    ChangeKind.LEFT: "is no longer in the answer",
    ChangeKind.CHANGED: "has other data in the answer now",
    ChangeKind.ELSEWHERE: "is not in the answer; its published data changed",
}


def changes(request: Mapping[str, Any]) -> str:
    """Return the nodes whose changes of an answer caused a run; empty if there are none.

    Args:
        request: `request.json` of the run.
    """
    by_question: dict[str, list[str]] = {}
    for node, change in _changes(request):
        facts = ", ".join(map(render.user_text, change.facts))
        sentence = f"{node}: {facts or _BECAME[change.how]}"
        by_question.setdefault(change.query, []).append(sentence)
    if not by_question:
        return ""
    shown = [click.style("Changed", dim=True)]
    for question, lines_of in by_question.items():
        shown.append(f"  {render.user_text(question)}")
        shown += [render.hanging("    ", line) for line in lines_of]
    return "\n".join(shown)


def _changes(request: Mapping[str, Any]) -> Iterator[tuple[str, AnswerChange]]:
    for raw in (request.get("causes") or {}).get("causes") or ():
        try:
            cause = RunCause.from_dict(raw)
        except StateError:
            continue  # of another version
        for change in cause.changes:
            yield str(cause.path[-1]), change
