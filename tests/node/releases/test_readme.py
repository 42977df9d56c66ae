"""README's section on control repositories, pasted: it works, and says what it says there."""

import re
from pathlib import Path

import yaml

from tests.rigs.forge import IDENTITY
from tests.rigs.node import Node
from tests.rigs.sessions import plain, section, session, typed

PAGE, HEADING = "../README.md", "Your own control repository in five minutes"
REPOSITORIES = "/srv/git"


def test_the_control_repository_of_the_readme_can_be_pasted(node: Node, tmp_path: Path) -> None:
    here = str(tmp_path / "git")

    def type_in(command: str, directory: Path) -> str:
        line = command.replace(REPOSITORIES, here)
        printed = typed(node, line, root=node.root, directory=directory, **IDENTITY)
        return printed.replace(here, REPOSITORIES)

    for block in re.findall(r"```sh\n(.*?)```", section(PAGE, HEADING), flags=re.DOTALL):
        assert type_in(block, tmp_path) == ""
    # Puppet's own directories stay those of the test.
    node.settings(**yaml.safe_load((node.root / "localpuppet.yaml").read_text()))
    for _, command, shown in session(PAGE, ["$ "], HEADING):
        assert plain(type_in(command, tmp_path / "git/control").splitlines()) == plain(shown), (
            command
        )
