"""Functions and data types beside the modules of a control repository, as Puppet loads them."""

from pathlib import Path

import pytest

from tests.node.releases.environment_code import FILES, tag_control, values, values_by_puppet
from tests.rigs.forge import Forge, klass, make
from tests.rigs.node import Node


@pytest.fixture
def control(node: Node, forge: Forge) -> Path:
    return tag_control(node, forge)


@pytest.fixture
def by_puppet(control: Path, tmp_path: Path) -> list[str]:
    return values_by_puppet(control, tmp_path)


def test_environment_code_is_that_of_puppet(
    node: Node, control: Path, by_puppet: list[str]
) -> None:
    make(node, "check", str(control), code=0)
    applied = node.run("apply", "--noop", code=0)
    assert values(applied.out) == by_puppet
    tried = node.run("try", str(control), "--noop")
    assert values(tried.out) == by_puppet
    assert node.run("lookup", "key").out == "by a function\n"


def test_no_code_of_the_previous_release_is_left(node: Node, forge: Forge, control: Path) -> None:
    node.run("apply", "--noop", code=0)
    repo = forge.repo("control")
    repo.git("rm", "-qr", "functions", "types", "site-modules", "manifests")
    repo.commit({"site-modules/profile/manifests/init.pp": klass("profile", "r2")}, "r2")
    node.write("input.yaml", "app: control/tags/r2\nclasses: [profile]\n")
    node.run("apply", "--noop", code=0)
    directory = node.state / "environments/production"
    assert [path.name for path in directory.iterdir()] == ["lib"]
    node.app("")
    node.run("apply", "--noop", code=0)
    assert not list(directory.iterdir())


def test_unparsable_code_beside_modules_is_refused(node: Node, forge: Forge, control: Path) -> None:
    repo = forge.repo("control")
    for name in ("functions/plain.pp", "types/port.pp", "manifests/site.pp"):
        repo.commit({name: FILES[name] + "\n{"})
        refused = make(node, "check", str(control), code=2)
        assert f"{control}/{name}: Puppet cannot parse it" in refused.err
        repo.git("tag", "-a", "-m", "bad", f"bad-{Path(name).stem}")
        staged = node.run("stage", f"control/tags/bad-{Path(name).stem}", code=2)
        assert f"/{name}: Puppet cannot parse it" in staged.err
        repo.commit({name: FILES[name]})
