"""A node as a row of a table."""

from typing import Any

import click

from localpuppet.cli import render
from localpuppet.formats.text import one_line


def cells(said: dict[str, Any]) -> list[str]:
    """Return what is shown of a node: name, state, last outcome, release, what it is about."""
    last = said.get("last") or {}
    holds = said.get("holds") or []
    state = render.user_text(said.get("state", ""))
    waiting = said.get("waiting") or 0
    about = ""
    if state == "applying":
        about = str(said.get("cause") or "")
    elif holds:
        about = str(holds[0].get("reason") or "")
    elif state == "not trusted":
        about = str(said.get("why", ""))
    word = click.style(one_line(state), fg=_color(state), bold=True)
    outcome = one_line(last.get("outcome") or "")
    return [
        one_line(said.get("node", "")),
        word + (f" +{waiting}" if waiting else ""),
        render.word(outcome) if outcome else "",
        one_line(last.get("app") or ""),
        one_line(about),
    ]


def _color(state: str) -> str | None:
    return {"applying": "cyan", "idle": "green", "on hold": "yellow", "not trusted": "red"}.get(
        state
    )
