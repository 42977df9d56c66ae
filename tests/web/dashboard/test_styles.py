"""The style sheet has a class for each word that a list shows."""

import re

import pytest

from localpuppet.fleet.inventory.run_kind import Kind
from localpuppet.web.dashboard.lists.list_query import CONCERNS
from localpuppet.web.dashboard.template_renderer import HERE


@pytest.mark.parametrize("word", [*(kind for kind in Kind if kind is not Kind.NONE), *CONCERNS])
def test_each_outcome_and_state_has_a_style(word: str) -> None:
    styles = (HERE / "static" / "page.css").read_text()
    assert re.search(rf"\.{word.replace(' ', '-')}\b", styles)
