"""Read a node's policy file.

Without a file, every action is denied. A file that other users can write to is rejected.
"""

import functools
from pathlib import Path

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.machine.files import is_file, read_user_file
from localpuppet.base.machine.ownership import refuse_foreign
from localpuppet.fleet.trust.policy import Policy, decide
from localpuppet.fleet.trust.policy_lines import MAX_POLICY


def policy_bytes(path: Path) -> bytes | None:
    """Return the bytes of a policy file; `None` if there is no file.

    Raises:
        InvalidInputError: The file is invalid, or other users can write to it or its directory.
    """
    if not is_file(path):
        return None
    refuse_foreign(path.parent)
    return read_user_file(path, limit=MAX_POLICY)


def read_policy(path: Path) -> Policy | None:
    """Return the policy of a node; `None` if there is no file, which denies everything."""
    data = policy_bytes(path)
    return None if data is None else _parsed(data, str(path))


def refusal(path: Path, caller: SignerName, action: str) -> str:
    """Return why the policy denies an action to a caller; empty if it allows it."""
    decision = decide(read_policy(path), caller.caller, action)
    return "" if decision.allowed else decision.reason


def trigger_refusal(path: Path, sender: NodeName) -> str | None:
    """Return why a sender may not trigger this node; `None` if it may: see `peer_refusal`."""
    return peer_refusal(path, sender, "trigger")


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


@functools.lru_cache(maxsize=1)
def _parsed(data: bytes, where: str) -> Policy:
    """Return the parsed policy, cached as the file seldom changes."""
    return Policy.parse(data, where=where)
