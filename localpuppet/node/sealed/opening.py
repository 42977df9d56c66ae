"""What the holder of identities opens: the groups of a release, and then their values.

A node has its sealing key, or two while it changes it; an operator has the identities in a file.
"""

from collections.abc import Sequence

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.sealed.age import AgeIdentity, NotOpenedError
from localpuppet.node.sealed.group_file import SealedGroup
from localpuppet.node.sealed.tree import SealedTree
from localpuppet.node.sealed.value_file import SealedValue


class SealedOpener:
    """Opens the values of one release; the identity of each group is opened once."""

    def __init__(self, tree: SealedTree, identities: Sequence[AgeIdentity]) -> None:
        self.tree = tree
        self._identities = tuple(identities)
        self._opened: dict[str, AgeIdentity | None] = {}

    def content(self, value: SealedValue) -> bytes:
        """Return the content of a value.

        Raises:
            NotOpenedError: It is sealed for others.
            InvalidInputError: It was sealed for another place, an earlier serial, or is damaged.
        """
        group = self.tree.group_of(value)
        identity = self.identity(group)
        if identity is None:
            raise NotOpenedError(
                f"sealed for {group.name}, not for this node",
                where=f"sealed/values/{value.path}.yaml",
            )
        try:
            return value.open(group.recipient, [identity])
        except NotOpenedError as error:
            raise InvalidInputError(
                f"is not sealed for {group.name}, or its bytes changed",
                where=error.where,
                hint="seal it again with 'localpuppet sealed set'",
            ) from error

    def identity(self, group: SealedGroup) -> AgeIdentity | None:
        """Return the identity of a group; `None` if it is not wrapped for this holder."""
        if group.name not in self._opened:
            self._opened[group.name] = group.opened_by(self._identities)
        return self._opened[group.name]

    def opened_groups(self) -> tuple[str, ...]:
        """Return the names of all groups that this holder opens, sorted."""
        return tuple(group.name for group in self.tree.groups() if self.identity(group))

    def closed_groups(self, name: str) -> tuple[str, ...]:
        """Return the groups that name a node, or have its key, and that it does not open."""
        keys = {one.recipient for one in self._identities if not one.is_plugin}
        return tuple(
            group.name
            for group in self.tree.groups()
            if any(name in one.names or one.recipient in keys for one in group.members)
            and self.identity(group) is None
        )
