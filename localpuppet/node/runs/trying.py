"""Prepares a run of a work tree, before it is a release: `localpuppet try`.

    may it? -> read the input, if there is one -> its modules -> compute the node document

Owns: what such a run is refused for, and what of the node does not count for it: the release that
the input names, a rollback, the order of releases. Refuses to know: how Puppet is run.
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
        node_input: What is said of the node; its own input may be missing.
        release: Returns the work tree in a directory, ready to be run.
        immutable_only: Whether the site runs tags only.
        note: Takes what a person should read.
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
        """Read the input, have the modules here, and refuse what can be refused by now.

        Args:
            options: How it is to be run.
            directory: The work tree.
            source: The input; the node's own, if it has one, for `None`.
            named: Takes what the work tree is called, as soon as it is known.

        Raises:
            LocalpuppetError: The site, the input or the tree refuses it; nothing was recorded.
        """
        if self.immutable_only:
            if not options.noop:
                raise InvalidInputError(
                    "a work tree may change, and immutable_only is set",
                    where=str(directory),
                    hint="--noop shows what it would do",
                )
            self.note("warning: compiling runs functions and facts of this work tree as this user")
        loaded = self.read_input(source)
        release = self.release(directory)
        named(release.app)
        return PreparedRun(
            loaded=loaded,
            release=release,
            options=options,
            document=self.node_input.document(loaded, release),
            instance_facts=self.node_input.instance_facts(),
        )

    def read_input(self, source: str | None) -> LoadedInput:
        """Return the input of a work tree, which may be missing where it is the node's own.

        Args:
            source: The input; the node's own, if it has one, for `None`.

        Raises:
            LocalpuppetError: The input is refused.
        """
        if source is None and not self.node_input.own.exists():
            self.note(f"there is no {self.node_input.own}: no class and no parameter is given")
            nothing = Input(app=_NO_RELEASE, layers=(), data=EncData(classes={}, parameters={}))
            return LoadedInput(name="", sha256="", input=nothing)
        return self.node_input.read(source)
