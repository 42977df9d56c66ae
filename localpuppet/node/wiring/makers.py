"""Builds the tools of makers of releases: lock, check, tag, package, gc."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.node.wiring.node import NodeWiring
from localpuppet.node.wiring.releases import ReleaseWiring

if TYPE_CHECKING:
    from localpuppet.node.releases.garbage import GarbageCollector
    from localpuppet.node.releases.git.repository import Repository
    from localpuppet.node.releases.git.work_tree import GitWorkTree
    from localpuppet.node.releases.making.checking import ReleaseChecker
    from localpuppet.node.releases.making.locker import LockWriter
    from localpuppet.node.releases.packages.building import Packager


class MakerWiring:
    """The parts that make and remove releases.

    Args:
        node: The parts of the node.
        releases: The parts for releases on the node.
    """

    def __init__(self, node: NodeWiring, releases: ReleaseWiring) -> None:
        self._node = node
        self._releases = releases

    def locker(self, repository: "Repository") -> "LockWriter":
        """Return the writer of locks."""
        from localpuppet.node.releases.making.locker import LockWriter

        return LockWriter(
            supply=self._releases.supply,
            repository=repository,
        )

    def checker(self, repository: "Repository") -> "ReleaseChecker":
        """Return the checker of working copies.

        Raises:
            PuppetMissingError: Puppet or its interpreter is missing.
        """
        from localpuppet.node.releases.git.committed_tree import refuse_unstageable
        from localpuppet.node.releases.making.checking import ReleaseChecker

        state = self._node.settings.state
        return ReleaseChecker(
            supply=self._releases.supply,
            repository=repository,
            state=state,
            parser=self._releases.parser(self._node.installed()),
            ignored=self._releases.ignored,
            bus=self._node.neighbours.exchange_resources,
            refuse_unstageable=partial(
                refuse_unstageable, self._releases.local_git(), scratch=state
            ),
        )

    def work_tree(self, directory: Path) -> "GitWorkTree":
        """Return the git work tree of a release's maker.

        Raises:
            InvalidInputError: The directory is not a work tree of git.
        """
        from localpuppet.node.releases.git.work_tree import GitWorkTree

        return GitWorkTree(directory, timeout=self._node.settings.git_timeout)

    def packager(self, repository: "Repository") -> "Packager":
        """Return the builder of packages."""
        from localpuppet.node.releases.packages.building import Packager

        return Packager(
            staging=self._releases.staging(repository),
            store=self._releases.store,
            repository=repository,
            tools=self._releases.package_tools(),
            directories=self._node.settings.packages,
        )

    def garbage(self) -> "GarbageCollector":
        """Return the remover of unneeded releases."""
        from localpuppet.node.releases.garbage import GarbageCollector
        from localpuppet.node.releases.git.kept_mirrors import KeptMirrors

        settings = self._node.settings
        sources = [source.url for source in settings.sources.values()]
        return GarbageCollector(
            staging=self._releases.staging(self._releases.git()),
            ledger=self._node.ledger,
            good=self._node.good_runs.releases,
            in_use=self._node.records.in_use,
            interfaces=self._releases.interfaces,
            mirrors=KeptMirrors(settings.state, sources),
            keep_staged=settings.keep_staged,
        )
