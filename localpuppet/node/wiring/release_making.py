"""Builds the parts of a command that makes a release: import, lock, check, tag or sign.

    making = ReleaseMaking(node)
    checked = making.check(directory)

A maker is often not root: if the state directory is not writable, the user's cache replaces it.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.node.wiring.node import NodeInputs, NodeWiring, program_environment
from localpuppet.node.wiring.releases import ReleaseWiring
from localpuppet.node.wiring.state import require_puppet

if TYPE_CHECKING:
    from localpuppet.node.releases.calling import CompiledNode, FactOverrides
    from localpuppet.node.releases.git.repository import Repository
    from localpuppet.node.releases.git.work_tree import GitWorkTree
    from localpuppet.node.releases.making.checking import ReleaseCheck
    from localpuppet.node.releases.making.locker import LockWriter
    from localpuppet.node.releases.puppetfile.parsing import Puppetfile


class ReleaseMaking:
    """The parts of one command of a release's maker.

    Args:
        node: The parts of the node; its settings apply to makers, too.

    Attributes:
        settings: The settings, with a state directory that the maker can write.
        sources: The places that code comes from.
    """

    def __init__(self, node: NodeWiring) -> None:
        self._node = node.for_makers()
        self._releases = ReleaseWiring(self._node)
        self.sources = self._releases.sources
        self.settings = self._node.settings

    def evaluate_puppetfile(self, text: bytes) -> "Puppetfile":
        """Return the entries of a Puppetfile after Ruby has run it, with this process's PATH.

        Raises:
            InvalidInputError: Ruby fails, or a limit is exceeded.
            StateError: A program for the child is missing.
        """
        from localpuppet.node.releases.puppetfile.importing import evaluate

        return evaluate(text, path=program_environment()["PATH"])

    def locker(self, repository: "Repository") -> "LockWriter":
        """Return the writer of locks."""
        from localpuppet.node.releases.making.locker import LockWriter

        return LockWriter(supply=self.sources.supply, repository=repository)

    def check(self, directory: Path) -> "ReleaseCheck":
        """Check a working copy; see `ReleaseChecker.check`.

        Raises:
            PuppetMissingError: Puppet or its interpreter is missing.
            LocalpuppetError: The working copy cannot be released.
        """
        from localpuppet.node.releases.git.work_tree import refuse_unstageable
        from localpuppet.node.releases.making.checking import ReleaseChecker

        sources, state = self.sources, self.settings.state
        with sources.repository(f"checking {directory}") as repository:
            checker = ReleaseChecker(
                supply=sources.supply,
                repository=repository,
                state=state,
                parser=self._releases.parser(require_puppet(self._node)),
                ignored=sources.ignored,
                bus=self._node.neighbours.exchange_resources,
                refuse_unstageable=partial(refuse_unstageable, sources.local_git(), scratch=state),
            )
            return checker.check(directory)

    def compile(
        self, directory: Path, inputs: Sequence[str], facts: "Sequence[FactOverrides | None]"
    ) -> "tuple[CompiledNode, ...]":
        """Compile the nodes of inputs with the release in a working copy; see `compile_nodes`.

        Raises:
            LocalpuppetError: An input is invalid, or the working copy cannot be prepared.
        """
        from localpuppet.node.releases.calling import compile_nodes
        from localpuppet.node.wiring.compiling import classifier
        from localpuppet.node.wiring.preview import node_catalogs

        node, own = self._node, NodeInputs(self._node)
        loaded = [own.reader.read(name) for name in inputs]
        release = self._releases.mutable.work_tree(directory)
        catalogs = node_catalogs(node, own)
        return compile_nodes(
            release,
            loaded,
            facts,
            compile_catalog=lambda *node: len(catalogs.compile(*node).resources),
            answer=classifier(node, own).answer,
        )

    def work_tree(self, directory: Path) -> "GitWorkTree":
        """Return the git work tree of a release's maker.

        Raises:
            InvalidInputError: The directory is not a work tree of git.
        """
        from localpuppet.node.releases.git.work_tree import GitWorkTree

        return GitWorkTree(directory, timeout=self.settings.git_timeout)
