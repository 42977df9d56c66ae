"""Limits of a release: the one table for what repositories, archives and packages may bring.

A caller that counts before it writes never exceeds the limits. Lengths are in characters, sizes in
bytes.
"""

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.value import Value

# -- trees: directories deep, bytes of a path and of a name in it, modules and collections --
# A module of Puppet's is some ten directories deep. Code that walks a tree may rely on these.
MAX_DEPTH = 100
MAX_PATH = 1024
MAX_NAME = 255
# Control repositories have 150 modules.
MAX_PINNED = 1_000

# -- git: lengths of names, seconds, sizes --
MAX_URL = 1024
MAX_REDIRECTS = 5
MAX_TAG = 200
MAX_TAG_SUBJECT = 200
# How far the clock of a tag's maker may be ahead of a node's.
MAX_TAG_AHEAD = 86400
# A manifest, lock or `metadata.json` that is read from a mirror without a work tree.
MAX_GIT_FILE = 1024 * 1024
MAX_COUNTERSIGNATURES = 64
# The longest of git's own: a message of many pages, or a chain of certificates.
MAX_COUNTERSIGNATURE = 64 * 1024

# -- manifests: directories of a modulepath, the length of a path in a repository --
MAX_DIRECTORIES = 9
MAX_INNER = 200

# -- the Forge, and the metadata of modules --
MAX_FORGE_DOCUMENT = 16 * 1024 * 1024
MAX_FORGE_TOKEN = 4096
MAX_METADATA = 1024 * 1024
MAX_METADATA_TEXT = 200

# -- archives and packages --
MAX_TAR_NAME = 4096
MAX_PAX = 64 * 1024
MAX_PACKAGE = 8 * 1024**3
MAX_PACKAGE_NAME = 120

# -- Puppetfiles, which run in a box, and Hiera data --
MAX_PUPPETFILE_OUTPUT = 8 * 1024 * 1024
MAX_PUPPETFILE_ERRORS = 64 * 1024
MAX_PUPPETFILE_PROGRAMS = 8
MAX_PUPPETFILE_MODULES = 10_000
MAX_HIERA_FILE = 16 * 1024 * 1024
MAX_HIERA_FILES = 20_000


class Limits(Value):
    """Limits of all trees of one release: bytes of a pack or all archives, and of all files."""

    file: int = 1024**3
    unpacked: int = 4 * 1024**3
    members: int = 500_000


LIMITS = Limits()


class Budget:
    """Counts members and bytes of one release, before they are written.

    One budget counts all parts of a release: its own tree, its modules and its collections,
    including those that the store has already.
    """

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._members = 0
        self._bytes = 0
        self._archives = 0

    def take(self, size: int, *, where: str, members: int = 1) -> None:
        """Count a member of some bytes, 0 for a link or directory, or several members together."""
        self._members += members
        self._bytes += size
        if self._members > self._limits.members:
            raise IntegrityError(f"too many members: at most {self._limits.members}", where=where)
        if self._bytes > self._limits.unpacked:
            raise IntegrityError(f"too large: at most {self._limits.unpacked} bytes", where=where)

    def take_archive(self, size: int, *, where: str) -> None:
        """Count the bytes of an archive itself."""
        self._archives += size
        if self._archives > self._limits.file:
            raise IntegrityError(
                f"too large: at most {self._limits.file} bytes of archives for one release",
                where=where,
            )


def refuse_too_many(pinned: int, *, where: str) -> None:
    """Reject a release that needs too many modules and collections."""
    if pinned > MAX_PINNED:
        raise InvalidInputError(
            f"exceed the limit: {pinned}, at most {MAX_PINNED} for one release",
            where=where,
            hint="combine modules into collections",
        )


def size_problem(path: bytes) -> str:
    """Return the problem with the length or depth of a path in a tree, or empty text."""
    parts = path.split(b"/")
    if len(parts) > MAX_DEPTH:
        return f"is more than {MAX_DEPTH} directories deep"
    if len(path) > MAX_PATH:
        return f"a path has more than {MAX_PATH} bytes"
    if max(map(len, parts)) > MAX_NAME:
        return f"a name has more than {MAX_NAME} bytes"
    return ""


class GitLimits(Value):
    """Limits of one git process.

    Attributes:
        output: Bytes of its output; tags and commits of a thousand modules take a tenth.
        errors: Bytes of its error output, which includes messages of the server.
        memory: Bytes of memory, of git and of each program that it starts: a list of refs may be
            endless.
        fetched: Bytes of the largest file that a fetch may write: a server sends one pack, and git
            writes an index of a tenth of its size.
        min_free: Bytes that a fetch must leave free on the disk.
    """

    output: int = 64 * 1024 * 1024
    errors: int = 64 * 1024
    memory: int = 2 * 1024 * 1024 * 1024
    fetched: int = LIMITS.unpacked
    min_free: int = 0
    parallel: int = 4


GIT_LIMITS = GitLimits()
