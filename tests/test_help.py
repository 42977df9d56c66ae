"""What `--help` says, of every verb and of those below it, on a narrow terminal."""

import re
from functools import cache
from importlib import import_module

import click
import pytest
from click.testing import CliRunner

from localpuppet.main import VERBS, cli

WIDTH = 80


def _names() -> list[str]:
    found = []
    for verb, module in sorted(VERBS.items()):
        command = getattr(
            import_module(f"localpuppet.{module}"), f"{verb.replace('-', '_')}_command"
        )
        below = (
            command.list_commands(click.Context(command))
            if isinstance(command, click.Group)
            else []
        )
        found += [verb, *(f"{verb} {name}" for name in below)]
    return found


NAMES = _names()


@cache
def help_of(words: str) -> str:
    done = CliRunner().invoke(
        cli, [*words.split(), "--help"], prog_name="localpuppet", terminal_width=WIDTH
    )
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("words", ["", *NAMES])
def test_help_fits_a_narrow_terminal(words: str) -> None:
    # 'lease' is wider; its paragraph of exit codes is broken by hand.
    wide = [line for line in help_of(words).splitlines() if len(line) > WIDTH]
    assert wide == [] or words == "lease"


@pytest.mark.parametrize("words", [name for name in NAMES if name != "call"])
def test_help_has_examples(words: str) -> None:
    lines = [line.strip() for line in help_of(words).splitlines()]
    assert any(
        line.startswith((f"localpuppet {words}", "external_nodes =", "web01#")) for line in lines
    )


@pytest.mark.parametrize("words", NAMES)
def test_every_option_says_what_it_does(words: str) -> None:
    text = help_of(words).partition("Options:\n")[2].partition("\n\n")[0]
    for option in re.findall(r"^  (-.+)$", text, re.MULTILINE):
        assert re.search(r"\S  +\S", option) or re.search(
            rf"^  {re.escape(option)}\n {{20,}}\S", text, re.MULTILINE
        ), option


@pytest.mark.parametrize("words", ["", "keys", "release"])
def test_a_list_of_verbs_has_whole_sentences(words: str) -> None:
    listed = help_of(words).partition("Commands:\n")[2].partition("\n\n")[0]
    assert listed
    assert "..." not in listed
