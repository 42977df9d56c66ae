"""Prepares a run of an unreleased work tree: `localpuppet try`.

    allowed? -> read the input, if any -> provide its modules -> compute the node document

The release that the input names, a rollback, and the order of releases do not count for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.enc.document import EncData, Input
from localpuppet.node.enc.input import LoadedInput
from localpuppet.node.releases.release import Release
from localpuppet.node.runs.options import RunOptions
from localpuppet.node.runs.preparing import NodeInput, PreparedRun

# What an input must name, and what does not count here.
_NO_RELEASE = ReleasePath("a-work-tree/trunk")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPreparation:
    """Prepares runs of work trees.

    Attributes:
        node_input: The node's input, which may be missing.
        release: Returns the work tree in a directory, ready to be run.
        immutable_only: Whether the site runs tags only.
        note: Takes messages for people.
    """

    node_input: NodeInput
    release: Callable[[Path], Release]
    immutable_only: bool
    note: Callable[[str], None]

    def prepare(
        self,
        options: RunOptions,
        *,
        directory: Path,
        source: str | None,
        named: Callable[[str], None],
    ) -> PreparedRun:
        """Read the input, provide the modules, and refuse the run if it cannot succeed.

        Args:
            options: How to run Puppet.
            directory: The work tree.
            source: The input; the node's own, if it has one, for `None`.
            named: Takes the name of the work tree, as soon as it is known.

        Raises:
            LocalpuppetError: The site's settings, the input or the tree do not allow the run.
                Nothing was recorded.
        """
        if self.immutable_only:
            if not options.noop:
                raise InvalidInputError(
                    "a work tree can change, and 'immutable_only' is set",
                    where=str(directory),
                    hint="--noop shows what it would do",
                )
            self.note("warning: compiling runs functions and facts of this work tree as this user")
        loaded = self.read_input(source)
        release = self.release(directory)
        named(release.name)
        return PreparedRun(
            loaded=loaded,
            release=release,
            options=options,
            document=self.node_input.document(loaded, release),
            instance_facts=self.node_input.instance_facts(),
        )

    def read_input(self, source: str | None) -> LoadedInput:
        """Return the input of a work tree; the node's own input may be missing.

        Args:
            source: The input; the node's own, if it has one, for `None`.

        Raises:
            LocalpuppetError: The input is invalid.
        """
        if source is None and not self.node_input.own.exists():
            self.note(f"there is no {self.node_input.own}: no class and no parameter is given")
            nothing = Input(app=_NO_RELEASE, layers=(), data=EncData(classes={}, parameters={}))
            return LoadedInput(name="", sha256="", input=nothing)
        return self.node_input.read(source)
