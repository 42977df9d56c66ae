"""Sites that have applied releases: each is made once, and copied for each test that needs it."""

import shutil
import subprocess
from pathlib import Path

from localpuppet.base.machine.files import remove_tree
from tests.rigs.forge import Forge, applied
from tests.rigs.node import Node


class SavedSites:
    """A site of a node and repositories, and copies of it that were saved under a name."""

    def __init__(self, directory: Path, node: Node) -> None:
        self.forge = Forge(directory / "site" / "forge")
        self.node = node
        self._directory = directory

    def save(self, name: str) -> None:
        """Save the site as it is."""
        self.node.end()
        self._copy("site", name)

    def has(self, name: str) -> bool:
        """Return whether a site was saved under a name."""
        return (self._directory / name).exists()

    def restore(self, name: str) -> Node:
        """Make the site what it was when it was saved; return its node."""
        self.node.end()
        remove_tree(self._directory / "site")
        self._copy(name, "site")
        return self.node

    def _copy(self, source: str, target: str) -> None:
        """Copy a site; its objects are linked, as localpuppet notices if an inode changes."""
        _copy(self._directory / source, self._directory / target)
        for objects in self._directory.glob(f"{source}/node/var/objects"):
            state = self._directory / target / "node" / "var"
            remove_tree(state / "objects")
            _copy(objects, state / "objects", "--link")


class KeptInterfaces:
    """What Puppet's parser answered about releases of earlier tests, by the releases' bytes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def give(self, node: Node) -> None:
        """Let a node know these releases, as if it had staged and collected them."""
        shutil.copytree(self._directory, node.state / "interfaces")
        (node.state / "interfaces").chmod(0o700)

    def take(self, node: Node) -> None:
        """Keep what a node has learnt; the tests of this process use it one after another."""
        shutil.copytree(node.state / "interfaces", self._directory, dirs_exist_ok=True)


def _copy(source: Path, target: Path, *options: str) -> None:
    subprocess.run(["cp", "--archive", *options, str(source), str(target)], check=True)


class AppliedReleases:
    """Sites that have applied the releases r1, r2 and so on, up to a number."""

    def __init__(self, sites: SavedSites) -> None:
        self.forge = sites.forge
        self._sites = sites

    def restore(self, count: int) -> Node:
        """Return the node as it was after it had applied a number of releases."""
        if not self._sites.has(str(count)):
            applied(self.restore(count - 1), self.forge, f"r{count}")
            self._sites.save(str(count))
        return self._sites.restore(str(count))
