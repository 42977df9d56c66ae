"""Limits of git on this machine: the server decides what git prints, writes and keeps in memory."""

from localpuppet.base.value import Value
from localpuppet.node.releases.limits import LIMITS


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
        parallel: How many fetches run at a time.
    """

    output: int = 64 * 1024 * 1024
    errors: int = 64 * 1024
    memory: int = 2 * 1024 * 1024 * 1024
    fetched: int = LIMITS.unpacked
    min_free: int = 0
    parallel: int = 4


GIT_LIMITS = GitLimits()
