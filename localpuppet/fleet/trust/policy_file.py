"""Reads a node's policy from its file.

Invariant: where there is no file, everything is denied; where others could write it, it is refused.
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
    """Return what a policy file holds, whatever its columns mean; `None` where there is none.

    Raises:
        InvalidInputError: The file is refused, or others could write to it or its directory.
    """
    if not is_file(path):
        return None
    refuse_foreign(path.parent)
    return read_user_file(path, limit=MAX_POLICY)


def read_policy(path: Path) -> Policy | None:
    """Return the policy of a node; `None` where it has none, which denies everything.

    Raises:
        InvalidInputError: The file is refused, or others could write to it or its directory.
    """
    data = policy_bytes(path)
    return None if data is None else _parsed(data, str(path))


def refusal(path: Path, caller: SignerName, action: str) -> str:
    """Return why a policy denies a caller an action; empty where it allows it.

    Raises:
        InvalidInputError: The policy is refused.
    """
    decision = decide(read_policy(path), caller.caller, action)
    return "" if decision.allowed else decision.reason


def trigger_refusal(path: Path, sender: NodeName) -> str | None:
    """Return why a sender may not trigger this node; `None` if it may: see `peer_refusal`."""
    return peer_refusal(path, sender, "trigger")


def peer_refusal(path: Path, peer: NodeName, action: str) -> str | None:
    """Return why another node may not make this one run; `None` if it may.

    Where there is no policy, whoever has a key that this node trusts may: that is what the key was
    trusted for. Requests are another matter (`requests.admission`): there no policy denies.

    Args:
        path: The policy file.
        peer: The other node.
        action: `trigger` or `react`: how it does so.
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
    """Return the policy in these bytes, which seldom are others than the last time."""
    return Policy.parse(data, where=where)
