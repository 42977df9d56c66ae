"""A node as a row of a table."""

from typing import Any

import click

from localpuppet.base.formats.text import one_line
from localpuppet.node.cli import render


def cells(node_status: dict[str, Any]) -> list[str]:
    """Return the cells of a node: name, state, last outcome, release, remark."""
    last = node_status.get("last_run") or {}
    holds = node_status.get("holds") or []
    rollback = node_status.get("rollback") or {}
    state = render.user_text(node_status.get("state", ""))
    waiting = node_status.get("waiting") or 0
    about = ""
    if state == "applying":
        about = str(node_status.get("cause") or "")
    elif holds:
        about = str(holds[0].get("reason") or "")
    elif rollback:
        about = (
            f"rolled back by {rollback.get('user')}, input names {rollback.get('input_release')}"
        )
    elif state == "not trusted":
        about = str(node_status.get("reason", ""))
    word = click.style(one_line(state), fg=_color(state), bold=True)
    outcome = one_line(last.get("outcome") or "")
    return [
        one_line(node_status.get("node", "")),
        word + (f" +{waiting}" if waiting else ""),
        render.word(outcome) if outcome else "",
        one_line(last.get("release") or ""),
        one_line(about),
    ]


def _color(state: str) -> str | None:
    return {"applying": "cyan", "idle": "green", "on hold": "yellow", "not trusted": "red"}.get(
        state
    )
