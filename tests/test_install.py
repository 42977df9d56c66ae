"""localpuppet as installed: from a clone with its script, and from a wheel."""

import re
import shutil
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from localpuppet.base.machine.own_program import EXTRAS
from tests.rigs.installed import PIP
from tests.rigs.node import REPOSITORY, Node, completed

BARE = ["env", "-i", "PATH=/usr/bin:/bin"]


def out(*command: str | Path) -> str:
    return completed(*command).out


@pytest.fixture
def linked(node: Node) -> Path:
    """A root with a link to the clone's script in it, as /etc/puppet may have."""
    script = node.root / "localpuppet.py"
    script.symlink_to(REPOSITORY / "localpuppet.py")
    return script


def test_the_script_applies_the_input_file_beside_it_as_the_original_did(
    node: Node, linked: Path
) -> None:
    node.app("notify { 'hello': }")
    assert "Notice: hello" in out(*BARE, linked)
    assert node.status()["outcome"] == "changed"
    node.write("other.yaml", (node.root / "input.yaml").read_text())
    node.write("input.yaml", "app: none/trunk\n")
    assert "Notice: hello" in out(*BARE, linked, node.root / "other.yaml")


def test_the_script_refuses_an_argument_that_the_original_ignored(linked: Path) -> None:
    done = completed(linked, "input.yaml", "more", check=False)
    assert (done.code, "unexpected extra argument (more)" in done.err) == (2, True)


def test_the_script_accepts_commands_too(node: Node, linked: Path) -> None:
    assert "foo/trunk" in out(*BARE, linked, "check")
    assert out(*BARE, linked, "--version").startswith("localpuppet, version")


def test_a_copied_script_does_not_shadow_the_package(node: Node) -> None:
    script = Path(shutil.copy(REPOSITORY / "localpuppet.py", node.root))
    completed(sys.executable, script, "check", cwd=node.root)


def test_the_error_of_a_script_without_its_libraries_names_a_cure(node: Node) -> None:
    script = Path(shutil.copy(REPOSITORY / "localpuppet.py", node.root))
    done = completed("/usr/bin/python3", "-I", script, check=False)
    assert done.code == 1
    assert done.err.startswith("localpuppet: error: Python has no module")
    assert "scripts/run" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_wheel_holds_all_that_a_node_needs(node: Node, tmp_path: Path, wheel: Path) -> None:
    target = tmp_path / "site"
    out(*PIP, "install", "--no-deps", "--no-index", "--target", target, wheel)
    shutil.rmtree(node.root / "enc")
    shutil.rmtree(node.root / "manifests")
    script = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from localpuppet.main import main;"
        " sys.exit(main())"
    )
    files = out("git", "-C", REPOSITORY, "ls-files", "localpuppet").splitlines()
    assert files
    assert not [path for path in files if not (target / path).exists()]
    for arguments in (["check"], ["units"], ["completion", "bash"], ["apply"]):
        place = (target, "--root", node.root)
        shown = out(*BARE, sys.executable, "-P", "-c", script, *place, *arguments)
    first = shown.splitlines()[0]
    assert f"--external_nodes {target}/localpuppet/base/share/enc/enc.sh" in first
    assert first.startswith(f"# LOCALPUPPET_NODE_DOCUMENT={node.root}/node.yaml ")
    assert first.endswith(f"{target}/localpuppet/base/share/manifests/default.pp")
    assert "Notice: I notify you!" in shown


def test_the_table_of_extras_is_what_pip_installs() -> None:
    """`pip` follows pyproject.toml; messages name the extra by the table."""
    packaged = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = packaged["optional-dependencies"]
    distributions = packages_distributions()

    def named(requirements: list[str]) -> set[str]:
        return {canonicalize_name(Requirement(text).name) for text in requirements}

    node, fleet = named(packaged["dependencies"]), named(wanted["fleet"])
    assert not node & fleet
    for extra, modules in EXTRAS.items():
        installed = {canonicalize_name(distributions[module][0]) for module in modules}
        needs = named(wanted[extra])
        also = fleet if "localpuppet" in needs else set()
        assert installed == needs - {"localpuppet"} | also, extra


def test_no_text_recommends_to_install_from_pypi() -> None:
    """A path, a file or a URL follows `pip install`; the name alone only in a warning."""
    texts = [
        REPOSITORY / "README.md",
        *(REPOSITORY / "localpuppet").rglob("*.py"),
        *(REPOSITORY / "docs").rglob("*.md"),
    ]
    name = re.compile(
        r"(?<!not run `)(?<!never `)\bpipx? install ['\"]?localpuppet\b(?!\[\w+\] @ )"
    )
    assert [text for text in texts if name.search(text.read_text())] == []
