"""The style sheet has a class for each state in a list, in the terminal's colour."""

import re
from datetime import UTC, datetime

import click
import pytest

from localpuppet.fleet.cli.nodes import cells
from localpuppet.fleet.inventory.node_row import STATES
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard.list_query import CONCERNS
from localpuppet.web.dashboard.template_renderer import HERE
from tests.fleet.make import a_row


@pytest.mark.parametrize("word", [*(kind for kind in Kind if kind is not Kind.NONE), *CONCERNS])
def test_each_outcome_and_state_has_a_style(word: str) -> None:
    styles = (HERE / "static" / "page.css").read_text()
    assert re.search(rf"\.{word.replace(' ', '-')}\b", styles)


COLORS = {
    "bad": "red",
    "warn": "yellow",
    "changed": "cyan",
    "corrected": "magenta",
    "good": "green",
}


@pytest.mark.parametrize("word", [*(kind for kind in Kind if kind is not Kind.NONE), *STATES])
def test_a_state_has_the_same_colour_in_the_terminal(word: str) -> None:
    styles = (HERE / "static" / "page.css").read_text()
    name = re.escape(word.replace(" ", "-"))
    (tone,) = re.findall(rf"\.{name}[ ,][^{{}}]*\{{ --of: var\(--(\w+)\)", styles)
    row = a_row("a", state=word) if word in STATES else a_row("a", outcome=Kind(word))
    shown = cells(row, datetime(2026, 11, 23, tzinfo=UTC))
    assert click.style(word, fg=COLORS[tone], bold=True) in shown
