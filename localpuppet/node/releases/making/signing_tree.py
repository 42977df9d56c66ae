"""The port to the work tree of a signing user; `releases.git.work_tree` implements it."""

from pathlib import Path
from typing import Protocol

from localpuppet.node.releases.git.names import Tag


class SigningTree(Protocol):
    """The git work tree of a signing user."""

    @property
    def directory(self) -> Path:
        """The top directory."""
        ...

    def remote_tag(self, tag: Tag) -> str:
        """Return the id that the remote has for a tag; empty if it has no such tag."""
        ...

    def is_signed(self, ref: str) -> bool:
        """Return whether a tag object carries a signature."""
        ...

    def remove_ref(self, ref: str) -> None:
        """Remove a ref that was just made."""
        ...

    def push_ref(self, ref: str) -> None:
        """Push a ref; an existing ref is not moved."""
        ...
