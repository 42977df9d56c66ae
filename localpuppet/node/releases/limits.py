"""How much a release may be: for trees from git, packages and packs alike.

Owns: the numbers, and how what is about to be written is counted against them. Refuses to know:
where it comes from, and where it goes. Invariant: who asks before writing never writes more.
"""

from dataclasses import dataclass

from localpuppet.base.errors import IntegrityError, InvalidInputError

# A module of Puppet's is some ten directories deep. Whoever walks a tree may rely on these.
MAX_DEPTH = 100
MAX_PATH = 1024
MAX_NAME = 255
# Modules and collections of one release. Control repositories have 150 modules.
MAX_PINNED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the trees of one release may take together.

    Attributes:
        file: Bytes of a pack itself, or of all archives of the Forge.
        unpacked: Bytes of all files.
        members: How many files, links and directories.
    """

    file: int = 1024**3
    unpacked: int = 4 * 1024**3
    members: int = 500_000


LIMITS = Limits()


class Budget:
    """Counts members and bytes of one release, before they are written.

    Everything that a release consists of is counted against one: its own tree, its modules and
    its collections, wherever they come from, and what the store has of them already.

    Args:
        limits: What it may take.
    """

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._members = 0
        self._bytes = 0
        self._archives = 0

    def take(self, size: int, *, where: str, members: int = 1) -> None:
        """Count a member.

        Args:
            size: Its bytes; 0 for a link or directory.
            where: Its place, for messages.
            members: How many there are; `size` is that of all.

        Raises:
            IntegrityError: It is one too many, or too large.
        """
        self._members += members
        self._bytes += size
        if self._members > self._limits.members:
            raise IntegrityError(f"too many members: at most {self._limits.members}", where=where)
        if self._bytes > self._limits.unpacked:
            raise IntegrityError(f"too large: at most {self._limits.unpacked} bytes", where=where)

    def take_archive(self, size: int, *, where: str) -> None:
        """Count the bytes of an archive itself.

        Raises:
            IntegrityError: All archives together are too large.
        """
        self._archives += size
        if self._archives > self._limits.file:
            raise IntegrityError(
                f"too large: at most {self._limits.file} bytes of archives for one release",
                where=where,
            )


def refuse_too_many(pinned: int, *, where: str) -> None:
    """Refuse a release that needs too many modules and collections.

    Raises:
        InvalidInputError: There are more than `MAX_PINNED`.
    """
    if pinned > MAX_PINNED:
        raise InvalidInputError(
            f"are too many: {pinned}, at most {MAX_PINNED} for one release",
            where=where,
            hint="put modules together into collections",
        )


def size_problem(path: bytes) -> str:
    """Return what is wrong with the length or depth of a path in a tree; empty when nothing is.

    Args:
        path: Relative to the tree's root, its components separated by `/`.
    """
    parts = path.split(b"/")
    if len(parts) > MAX_DEPTH:
        return f"is more than {MAX_DEPTH} directories deep"
    if len(path) > MAX_PATH:
        return f"a path has more than {MAX_PATH} bytes"
    if max(map(len, parts)) > MAX_NAME:
        return f"a name has more than {MAX_NAME} bytes"
    return ""
