"""An optional file that is a link to nothing is an error: what it would say must not be dropped."""

from pathlib import Path

import pytest

from tests.rigs.node import Node

OPTIONAL = [
    "localpuppet.yaml",
    "manifests/default.pp",
    "enc/enc.sh",
    "modules/app/trunk/enc.yaml",
    "modules/app/trunk/hiera.yaml",
    "modules/app/trunk/manifest.lock",
]


def dangle(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to("not-there.yaml")


@pytest.mark.parametrize("name", OPTIONAL)
@pytest.mark.parametrize("verb", ["check", "apply"])
def test_a_dangling_link_is_not_a_missing_file(node: Node, name: str, verb: str) -> None:
    node.app("")
    assert node.run("check").code == 0
    dangle(node.root / name)
    done = node.run(verb)
    assert done.code == 2, done.err
    assert f"{node.root / name}: is a link that leads nowhere" in done.err
    assert len(done.err.splitlines()) == 1
    assert not node.runs()


def test_a_dangling_link_of_what_the_fleet_is_told(node: Node) -> None:
    assert node.run("nodes").code == 0
    dangle(node.root / "localpuppet-agent.yaml")
    done = node.run("nodes")
    assert done.code == 2, done.err
    assert "localpuppet-agent.yaml: is a link that leads nowhere" in done.err
