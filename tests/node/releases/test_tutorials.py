"""The tutorials for one node and of the README: pasted commands print the shown output."""

import os
import re
from pathlib import Path

import pytest
import yaml

from tests.rigs.node import Node
from tests.rigs.sessions import plain, section, split_commands, typed

SERVICES = "/srv/"
FIVE_MINUTES = "Your own control repository in five minutes"
# A new machine: git has no author, and does not guess one from the host name.
NEW_MACHINE = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "user.useConfigOnly",
    "GIT_CONFIG_VALUE_0": "true",
}


class Terminal:
    """The shell of a reader, with the directories of the test."""

    def __init__(self, node: Node, services: Path) -> None:
        self.node = node
        self.services = services
        self.directory = services

    def enter(self, text: str) -> str:
        """Return the output of a command or a block of commands."""
        here = f"{self.services}/"
        line = text.replace(SERVICES, here)
        printed = typed(
            self.node, line, root=self.node.root, directory=self.directory, **NEW_MACHINE
        )
        for directory in re.findall(r"^(?:.*&& )?cd (\S+)", line, re.MULTILINE):
            self.directory = Path(directory)
        return printed.replace(here, SERVICES)


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("../README.md", FIVE_MINUTES),
        ("start/first-node.md", ""),
        ("start/control-repository.md", ""),
    ],
)
def test_the_commands_of_a_tutorial_print_its_output(
    node: Node, tmp_path_factory: pytest.TempPathFactory, page: str, heading: str
) -> None:
    terminal = Terminal(node, tmp_path_factory.mktemp("services"))
    blocks = re.findall(r"```(sh|console)\n(.*?)```", section(page, heading), re.DOTALL)
    assert {language for language, _ in blocks} == {"sh", "console"}
    settings = node.root / "localpuppet.yaml"
    for language, text in blocks:
        commands: list[tuple[str, list[str] | None]] = [(text, None)]
        if language == "console":
            commands = [(line, expected) for _, line, expected in split_commands(text, ["$ "])]
        for command, expected in commands:
            printed = terminal.enter(command)
            if expected is None:
                assert printed == ""
            else:
                assert plain(printed.splitlines()) == plain(expected), command
            written = yaml.safe_load(settings.read_text()) if settings.exists() else {"puppet": {}}
            if "puppet" not in written:  # Puppet keeps the directories of the test
                node.settings(**written)
