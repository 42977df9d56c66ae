"""What one member of a bus may read and write, in keys: what the engines' permissions are made of.

Owns: the value. Refuses to know: who gets which (`bus_roster`), and how an engine says it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One right.

    Attributes:
        key: A key; or a prefix of keys, which ends with `/`.
        write: Whether it may be written and removed; else read, listed and watched.
    """

    key: str
    write: bool

    @property
    def prefix(self) -> bool:
        """Return whether it is about all keys below."""
        return self.key.endswith("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A node or a person, and what it may do.

    Attributes:
        name: As in its certificate.
        grants: Its rights; none twice.
    """

    name: str
    grants: tuple[Grant, ...]
