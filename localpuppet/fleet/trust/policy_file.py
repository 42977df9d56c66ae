"""Read a node's policy file.

Without a file, every action is denied. A file that other users can write to is rejected.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.machine.files import is_file, read_user_file
from localpuppet.base.machine.ownership import refuse_foreign
from localpuppet.fleet.trust.policy import Policy, decide
from localpuppet.fleet.trust.policy_lines import MAX_POLICY

Parsed = TypeVar("Parsed")


def read_policy_file(path: Path, parse: Callable[..., Parsed]) -> Parsed | None:
    """Return what `parse` makes of a policy file; `None` if there is no file.

    Args:
        path: The file.
        parse: Gets the bytes, and the file as `where`.

    Raises:
        InvalidInputError: The file is invalid, or other users can write to it or its directory.
    """
    if not is_file(path):
        return None
    refuse_foreign(path.parent)
    policy: Parsed = _parsed(parse, read_user_file(path, limit=MAX_POLICY), str(path))
    return policy


# The files seldom change.
@lru_cache(maxsize=4)
def _parsed(parse: Callable[..., Any], data: bytes, where: str) -> Any:  # noqa: ANN401 - `Parsed`
    return parse(data, where=where)


def read_policy(path: Path) -> Policy | None:
    """Return the policy of a node; `None` if there is no file, which denies everything."""
    return read_policy_file(path, Policy.parse)


def refusal(path: Path, caller: SignerName, action: str) -> str:
    """Return why the policy denies an action to a caller; empty if it allows it."""
    decision = decide(read_policy(path), caller.caller, action)
    return "" if decision.allowed else decision.reason


def peer_refusal(path: Path, peer: NodeName, action: str) -> str | None:
    """Return why another node may not cause runs of this node; `None` if it may.

    Without a policy, every node with a trusted key may, as its key was trusted for that. Requests
    differ: without a policy, they are denied (`requests.admission`).

    Args:
        path: The policy file.
        peer: The other node.
        action: `trigger` or `react`.
    """
    try:
        policy = read_policy(path)
    except LocalpuppetError as error:
        return str(error)
    if policy is None:
        return None
    decision = decide(policy, SignerName(peer).caller, action)
    return None if decision.allowed else decision.reason
