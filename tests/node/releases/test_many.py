"""stage with more modules than one batch, some with equal bytes."""

import shutil

import pytest

from localpuppet.node.releases.git.mirrors import TREES_AT_ONCE
from tests.rigs.forge import Forge, klass, make
from tests.rigs.node import Node

COUNT = TREES_AT_ONCE + 3


@pytest.fixture
def crowd(node: Node, forge: Forge) -> Node:
    """A node whose source `web` has release r1 with many modules, all but the last equal."""
    node.settings(allow_file_urls=True, sources={"web": {"git": forge.repo("web").url}})
    forge.repo("m0").commit({"manifests/init.pp": klass("m", "same")}, "v1")
    for number in range(1, COUNT):
        shutil.copytree(forge.path / "m0", forge.path / f"m{number}")
    last = forge.repo(f"m{COUNT - 1}")
    last.commit({"manifests/init.pp": klass("m", "other")}, "v2")
    lines = [
        f"  m{number}: {{git: '{forge.repo(f'm{number}').url}', tag: {'v2' if last else 'v1'}}}"
        for number, last in ((number, number == COUNT - 1) for number in range(COUNT))
    ]
    web = forge.repo("web")
    web.write({"manifest.yaml": "\n".join(["modules:", *lines]) + "\n"})
    locked = make(node, "lock", str(web.path))
    assert locked.code == 0, locked.err
    web.commit({}, "r1")
    return node


def test_all_modules_are_staged_and_equal_ones_are_stored_once(crowd: Node) -> None:
    staged = crowd.run("stage", "web/tags/r1", "--json")
    assert staged.code == 0, staged.err
    assert len(staged.json["modules"]) == COUNT
    assert len(list((crowd.state / "objects").iterdir())) == 3, (
        "the equal module, the last one, and the release"
    )
    assert not list((crowd.state / "staging").iterdir())
    assert not list((crowd.state / "mirrors").glob(".*"))
    assert crowd.run("release", "verify", "web/tags/r1", "--quick").code == 0
    assert crowd.run("release", "verify", "web/tags/r1").code == 0


def test_one_moved_tag_among_many_prevents_staging(crowd: Node, forge: Forge) -> None:
    last = forge.repo(f"m{COUNT - 1}")
    last.commit({"manifests/init.pp": klass("m", "evil")})
    last.git("tag", "-f", "-a", "-m", "v2", "v2")
    alarm = crowd.run("stage", "web/tags/r1")
    assert alarm.code == 3
    assert f"modules.m{COUNT - 1}: the tag v2 has moved" in alarm.err
    assert not list((crowd.state / "objects").iterdir())
    assert not list((crowd.state / "staging").iterdir())
    assert not (crowd.root / "modules/web").exists()


def test_one_missing_repository_among_many_prevents_staging(crowd: Node, forge: Forge) -> None:
    shutil.rmtree(forge.path / "m3")
    refused = crowd.run("stage", "web/tags/r1")
    assert refused.code == 69
    assert "m3: cannot fetch v1" in refused.err
    assert not list((crowd.state / "staging").iterdir())
    assert not (crowd.root / "modules/web").exists()
