"""Real git repositories, and nodes that use them as sources or have a package instead.

The repositories of all tests of a process have the same URLs, so that equal releases have equal
bytes. Puppet's parser then reads each once, as on a node that stages a release again.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.base.machine.files import remove_tree
from tests.rigs.applied import AppliedReleases, KeptInterfaces, SavedSites
from tests.rigs.forge import Forge, klass, release
from tests.rigs.node import Node, make_node
from tests.rigs.packages import Scratch
from tests.rigs.signing import Signing
from tests.rigs.staged import R1, ReleaseSite


@pytest.fixture(scope="session")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the repositories of one test after another."""
    return tmp_path_factory.mktemp("forge")


@pytest.fixture(scope="session")
def interfaces(tmp_path_factory: pytest.TempPathFactory) -> KeptInterfaces:
    return KeptInterfaces(tmp_path_factory.mktemp("interfaces"))


@pytest.fixture
def forge(repositories: Path) -> Forge:
    remove_tree(repositories)
    return Forge(repositories)


def make_site(node: Node, forge: Forge) -> Node:
    """Give a node the source `web`, with release r1: a module, a single module, a collection."""
    forge.repo("dist").commit({"platform/manifests/init.pp": klass("platform", "dist r7")}, "r7")
    forge.repo("ntp").commit({"manifests/init.pp": klass("ntp", "ntp v1")}, "v1")
    node.settings(
        allow_file_urls=True,
        sources={"web": {"git": forge.repo("web").url}, "dist": {"git": forge.repo("dist").url}},
    )
    release(node, forge, "r1")
    node.write("input.yaml", "app: web/tags/r1\nclasses: [web, ntp, platform]\n")
    return node


@pytest.fixture
def site(node: Node, forge: Forge, interfaces: KeptInterfaces) -> Iterator[Node]:
    """A node with the source `web`."""
    interfaces.give(node)
    yield make_site(node, forge)
    interfaces.take(node)


@pytest.fixture(scope="session")
def saved_sites(
    tmp_path_factory: pytest.TempPathFactory, puppet_probe: str
) -> Iterator[SavedSites]:
    """A node with the source `web`, which is saved as `0`."""
    directory = tmp_path_factory.mktemp("sites")
    node = make_node(directory / "site" / "node", puppet_probe)
    make_site(node, Forge(directory / "site" / "forge"))
    sites = SavedSites(directory, node)
    sites.save("0")
    yield sites
    node.end()


@pytest.fixture
def sites(saved_sites: SavedSites) -> AppliedReleases:
    return AppliedReleases(saved_sites)


@pytest.fixture
def web_site(tmp_path: Path) -> ReleaseSite:
    """A node with repositories in memory, which have release r1 of `web`."""
    made = ReleaseSite(tmp_path)
    made.release(R1)
    return made


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    path = tmp_path / "machine"
    admin = path / "var/lib/dpkg"
    for name in ("updates", "info", "triggers"):
        (admin / name).mkdir(parents=True)
    (admin / "status").touch()
    return Scratch(path)


@pytest.fixture
def bare(
    tmp_path: Path, puppet_probe: str, scratch: Scratch, interfaces: KeptInterfaces
) -> Iterator[Node]:
    """A node without sources, on which git fails."""
    root = tmp_path / "bare"
    root.mkdir()
    made = make_node(root, puppet_probe)
    interfaces.give(made)
    made.settings(allow_file_urls=True, packages=[str(scratch.packages)])
    made.write("input.yaml", "app: web/tags/r1\nclasses: [web, ntp, platform]\n")
    made.write("bin/git", f"#!/bin/sh\necho git >>{root}/git-was-called\nexit 97\n", 0o755)
    yield made
    assert not (root / "git-was-called").exists()


@pytest.fixture
def signing(tmp_path: Path) -> Signing:
    """A home with two OpenSSH keys: `ssh` signs releases, `other` is a stranger's."""
    home = tmp_path / "home"
    home.mkdir()
    made = Signing(home)
    for name in ("ssh", "other"):
        made.ssh_key(name)
    return made
