"""`localpuppet.yaml` has sections for each layer, and each command reports errors in all."""

from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.app import NodeApp, NodePorts
from localpuppet.node.settings import SettingsFile
from tests.rigs.node import Node


def refuse(file: SettingsFile) -> None:
    raise InvalidInputError("is refused", where=f"{file.path}: above")


def test_a_section_is_read_once_with_the_state_directory(tmp_path: Path) -> None:
    (tmp_path / "localpuppet.yaml").write_text("state: here\n")
    node, read = NodeApp(str(tmp_path)), list[Path]()

    def section(file: SettingsFile) -> int:
        read.append(file.state)
        return len(read)

    assert (node.section(section), node.section(section)) == (1, 1)
    assert read == [tmp_path / "here"]


def test_an_invalid_section_of_a_layer_above_is_an_error_for_every_command(tmp_path: Path) -> None:
    assert NodeApp(str(tmp_path)).settings.root == tmp_path
    node = NodeApp(str(tmp_path), ports=NodePorts(sections=lambda _: (refuse,)))
    with pytest.raises(InvalidInputError, match=r"localpuppet\.yaml: above: is refused"):
        _ = node.settings


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"identity": {"crl": "crl.pem"}}, "identity: crl needs ca"),
        ({"web": {"certificate": "page.pem", "key": "page.key"}, "socket": "x" * 120}, "107 bytes"),
        ({"web": {"people": ["no name!"]}}, "web.people"),
        ({"inventory": {"expire": "1h"}}, "inventory.expire"),
    ],
)
def test_the_command_line_checks_the_sections_of_all_layers(
    node: Node, section: dict[str, object], problem: str
) -> None:
    node.settings(**section)
    done = node.run("status", code=2)
    assert problem in done.err
