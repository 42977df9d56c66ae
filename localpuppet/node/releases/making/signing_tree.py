"""What whoever signs asks of a work tree: a port that `releases.git.work_tree` implements."""

from pathlib import Path
from typing import Protocol

from localpuppet.node.releases.git.names import Tag


class SigningTree(Protocol):
    """The git work tree of somebody who signs."""

    @property
    def directory(self) -> Path:
        """Where it is."""
        ...

    def remote_tag(self, tag: Tag) -> str:
        """Return the id that the remote has for a tag; empty where it has no such tag."""
        ...

    def is_signed(self, ref: str) -> bool:
        """Return whether a tag object carries a signature."""
        ...

    def remove_ref(self, ref: str) -> None:
        """Remove a ref that was just made."""
        ...

    def push_ref(self, ref: str) -> None:
        """Push a ref; one that is there already is not moved."""
        ...
