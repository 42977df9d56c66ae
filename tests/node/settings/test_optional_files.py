"""A dangling link in place of an optional file is an error: localpuppet must not ignore it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rigs.node import Node

OPTIONAL = [
    *("localpuppet.yaml", "manifests/default.pp", "enc/enc.sh", "modules/app/trunk/enc.yaml"),
    *("modules/app/trunk/hiera.yaml", "modules/app/trunk/manifest.lock"),
]


def dangle(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to("not-there.yaml")


@pytest.mark.parametrize("name", OPTIONAL)
@pytest.mark.parametrize("verb", ["check", "apply"])
def test_a_dangling_link_is_not_a_missing_file(node: Node, name: str, verb: str) -> None:
    node.app("")
    node.run("check", code=0)
    dangle(node.root / name)
    done = node.run(verb, code=2)
    assert f"{node.root / name}: is a broken link" in done.err
    assert len(done.err.splitlines()) == 1
    assert not node.runs()


ODD: list[tuple[Callable[[Node], object], str]] = [
    (
        lambda node: os.mkfifo(node.root / "modules/app/trunk/hiera.yaml"),
        "modules/app/trunk/hiera.yaml: is not a regular file",
    ),
    (
        lambda node: node.write("input.yaml", "app: gone/trunk\n"),
        "error: ROOT/input.yaml: gone/trunk: does not exist",
    ),
    (
        lambda node: (node.root / "input.yaml").unlink(),
        "error: ROOT/input.yaml: file not found ('localpuppet init' writes the input of a node)",
    ),
]


@pytest.mark.parametrize(("spoil", "problem"), ODD, ids=["a pipe", "no release", "no input"])
@pytest.mark.parametrize("verb", ["check", "apply"])
def test_an_error_names_the_file(
    node: Node, spoil: Callable[[Node], object], problem: str, verb: str
) -> None:
    node.app("")
    spoil(node)
    assert problem.replace("ROOT", str(node.root)) in node.run(verb, code=2).err


def test_commands_show_a_record_with_an_invalid_timestamp(node: Node) -> None:
    node.app("")
    node.run("apply", code=0)
    request = node.state / "runs" / node.runs()[0] / "request.json"
    text = request.read_text()
    timestamp = text[text.index('"requested_at"') :].split('"')[3]
    for bad in ("yesterday", "2026-11-22T00:00:00", "9999999999"):
        request.write_text(text.replace(timestamp, bad))
        for verb in ("why", "history", "status", "logs"):
            done = node.run(verb)
            assert done.code in (0, 1), done.err
            assert "bug" not in done.err
