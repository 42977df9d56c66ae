"""A wheel without extras runs a node, and errors name the extra of a missing part."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.installed import Installation
from tests.rigs.node import REPOSITORY, Node

pytestmark = pytest.mark.slow

NATS = {"servers": ["nats://127.0.0.1:9"]}
ETCD = {"servers": ["http://127.0.0.1:9"]}
# The tests of sealed values in tests/node need the library of that extra.
NO_EXTRA = """
from importlib.util import find_spec
from localpuppet.base.machine.own_program import EXTRAS
names = {name for extra, names in EXTRAS.items() if extra != "sealed" for name in names}
print([*filter(find_spec, names)])
"""


@pytest.fixture(scope="module")
def alone(wheel: Path) -> Iterator[Installation]:
    """The wheel without extras, readable for other users, with pytest for the last test."""
    directory = Path(tempfile.mkdtemp(prefix="localpuppet-alone-"))
    directory.chmod(0o755)
    yield Installation.make(directory, wheel)
    shutil.rmtree(directory)


def test_no_library_of_an_extra_is_installed(alone: Installation) -> None:
    command = [str(alone.python), "-P", "-c", NO_EXTRA]
    assert subprocess.run(command, capture_output=True, cwd="/", check=True).stdout == b"[]\n"


def test_the_first_example_of_the_readme_runs(alone: Installation, node: Node) -> None:
    example = (REPOSITORY / "README.md").read_text().partition("```console\n$ scripts/run\n")[2]
    notices = re.findall(r"^Notice: (?!Compiled|Applied).*$", example.partition("```")[0], re.M)
    assert len(notices) == 4
    done = alone.run("apply", root=node.root)
    assert done.code == 0, done.err
    assert [notice for notice in notices if notice not in done.out] == []
    for command in ("check", "enc", "status", "why", "report", "history", "logs", "--help"):
        assert alone.run(command, root=node.root).code == 0, command
    assert alone.run("status", "--json", root=node.root).json["run"]["outcome"] == "changed"
    assert alone.run("capture", str(node.root / "nodes"), root=node.root).code == 0


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("agent", "fleet"),
        ("keys show", "fleet"),
        ("lease migration -- true", "fleet"),
        ("web", "web"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    alone: Installation, node: Node, command: str, extra: str
) -> None:
    node.settings(node="web01.example.com")
    done = alone.run(*command.split(), root=node.root)
    assert done.code == 2, done.err
    (line,) = done.err.splitlines()
    named = re.escape(f"needs the extra '{extra}', and Python has no module '")
    assert re.match(rf"localpuppet: error: localpuppet {command.split()[0]}.*: {named}", line)
    assert f"(pip install 'PATH[{extra}]', where PATH is the clone or wheel" in line


@pytest.mark.parametrize("engine", ["sqlite", "nats", "etcd"])
def test_a_bus_without_its_extra_is_refused_before_a_run(
    alone: Installation, node: Node, engine: str
) -> None:
    node.settings(node="web01.example.com", bus=engine, buses={"nats": NATS, "etcd": ETCD})
    extra = "fleet" if engine == "sqlite" else engine
    for command in ("apply", "check", "agent", "trigger web02.example.com"):
        refused = alone.run(*command.split(), root=node.root)
        assert refused.code == 2, command
        assert f"bus {engine}: needs the extra '{extra}'" in refused.err
    assert node.runs() == []
    assert alone.run("status", root=node.root).code == 0


def test_a_trigger_of_a_manifest_fails_the_run_and_names_the_extra(
    alone: Installation, node: Node
) -> None:
    node.settings(node="web01.example.com")
    node.app("notify { 'x': } ~> trigger { 'go': hosts => ['lb01.example.com'] }")
    done = alone.run("apply", root=node.root)
    assert done.code == 1
    assert re.search(r"Trigger\[go\].*needs the extra 'fleet'", done.out + done.err)
    assert alone.run("status", "--json", root=node.root).json["run"]["outcome"] == "failed"


def test_tests_of_base_and_node_pass_without_extras(alone: Installation) -> None:
    """`scripts/slow` runs all of them, also those with Puppet and those that try many values."""
    sample = ["-n", "0", "--quick", "-m", "not hypothesis", "tests/node/runs"]
    full = os.environ.get("NODE_ALONE_FULL")
    done = alone.test(*(["--long", "tests/base", "tests/node"] if full else sample))
    assert done.code == 0, done.out
