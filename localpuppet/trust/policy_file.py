"""Reads a node's policy from its file.

Invariant: where there is no file, everything is denied; where others could write it, it is refused.
"""

import functools
from pathlib import Path

from localpuppet.errors import InvalidInputError
from localpuppet.machine.files import read_user_file, refuse_foreign
from localpuppet.trust.policy import MAX_POLICY, Policy


def read_policy(path: Path) -> Policy | None:
    """Return the policy of a node; `None` where it has none, which denies everything.

    Raises:
        InvalidInputError: The file is refused, or others could write to it or its directory.
    """
    try:
        path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    refuse_foreign(path.parent)
    return _parsed(read_user_file(path, limit=MAX_POLICY), str(path))


@functools.lru_cache(maxsize=1)
def _parsed(data: bytes, where: str) -> Policy:
    """Return the policy in these bytes, which seldom are others than the last time."""
    return Policy.parse(data, where=where)
