"""Words from a fixed list of choices."""

import re
from enum import StrEnum

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import parse_choice


class Way(StrEnum):
    BY_SEA = "by sea"
    BY_LAND = "by land"


def test_an_unknown_word_is_refused_with_the_list_of_choices() -> None:
    assert parse_choice(Way, "by sea", what="a way") is Way.BY_SEA
    for hint, cure in (("", ""), ("look at a map", "; look at a map")):
        shown = f"'{'x' * 60}' is not a way (use one of by sea, by land{cure})"
        with pytest.raises(InvalidInputError, match=f"{re.escape(shown)}$"):
            parse_choice(Way, "x" * 1000, what="a way", hint=hint)
