"""The keys that a member of a bus may read and write; engines derive permissions from them."""

from localpuppet.base.value import Value


class Grant(Value):
    """A right to one key or prefix.

    Attributes:
        key: A key; or a prefix of keys, which ends with `/`.
        write: Whether it grants write and remove; otherwise read, list and watch.
    """

    key: str
    write: bool

    @property
    def prefix(self) -> bool:
        """Return whether the right is to all keys below a prefix."""
        return self.key.endswith("/")


class Member(Value):
    """A node or a person with their rights.

    Attributes:
        name: The name in the certificate.
        grants: The rights, without duplicates.
    """

    name: str
    grants: tuple[Grant, ...]
