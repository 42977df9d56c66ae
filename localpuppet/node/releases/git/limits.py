"""What git may take of this machine: a server says what git says, writes and remembers."""

from dataclasses import dataclass

from localpuppet.node.releases.limits import LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class GitLimits:
    """What git may take.

    Attributes:
        said: Bytes that are read of what it prints: tags and commits of a thousand modules are a
            tenth of it.
        errors: Bytes that are kept of its errors, among them whatever a server wants to be shown.
        memory: Bytes of memory, of git itself and of each program that it starts: a list of refs
            need not have an end.
        fetched: Bytes of the largest file that a fetch may write: a pack that unfolds to what no
            release may be is not a release. What a server sends is one pack, and beside it an index
            of a tenth.
        min_free: Bytes that a fetch must leave free on the disk.
        parallel: How many fetches there may be at a time.
    """

    said: int = 64 * 1024 * 1024
    errors: int = 64 * 1024
    memory: int = 2 * 1024 * 1024 * 1024
    fetched: int = LIMITS.unpacked
    min_free: int = 0
    parallel: int = 4


GIT_LIMITS = GitLimits()
