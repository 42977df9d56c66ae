"""A dangling link in place of an optional file is an error: localpuppet must not ignore it."""

import os
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
    node.run("check", code=0)
    dangle(node.root / name)
    done = node.run(verb, code=2)
    assert f"{node.root / name}: is a broken link" in done.err
    assert len(done.err.splitlines()) == 1
    assert not node.runs()


@pytest.mark.parametrize("verb", ["check", "apply"])
def test_a_fifo_is_not_an_optional_file(node: Node, verb: str) -> None:
    node.app("")
    os.mkfifo(node.root / "modules/app/trunk/hiera.yaml")
    done = node.run(verb, code=2)
    assert "modules/app/trunk/hiera.yaml: is not a regular file" in done.err


@pytest.mark.parametrize("verb", ["check", "apply"])
def test_the_error_of_a_missing_app_names_the_input(node: Node, verb: str) -> None:
    node.write("input.yaml", "app: gone/trunk\n")
    done = node.run(verb, code=2)
    assert f"error: {node.root}/input.yaml: gone/trunk: does not exist" in done.err


@pytest.mark.parametrize("verb", ["check", "apply"])
def test_the_error_of_a_missing_input_names_the_command_that_writes_it(
    node: Node, verb: str
) -> None:
    (node.root / "input.yaml").unlink(missing_ok=True)
    done = node.run(verb, code=2)
    cure = "'localpuppet init' writes the input of a node"
    assert f"error: {node.root}/input.yaml: file not found ({cure})" in done.err


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
