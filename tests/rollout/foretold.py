"""What simulated nodes would change, and its approval."""

from dataclasses import replace

from localpuppet.base.formats.names import NodeName
from localpuppet.node.puppet.changes import PredictedChanges, PropertyChange
from localpuppet.rollout.events import RolloutBegan
from localpuppet.rollout.rollout_options import Approval
from tests.rollout.simulated import ID

SALT = "5a" * 16


def change(title: str, value: int = 0) -> PropertyChange:
    """Return a change of the content of a file, to some value."""
    return PropertyChange(
        type="File", title=title, property="content", mark=f"{hash_of(title, value):032x}"
    )


def hash_of(title: str, value: int) -> int:
    return int.from_bytes(title.encode()[-8:], "big") * 1000 + value


def foretold(*changes: PropertyChange, release: str = "shop/tags/r7") -> PredictedChanges:
    return PredictedChanges(release=release, total=len(changes), changes=tuple(sorted(changes)))


def approval(nodes: dict[NodeName, PredictedChanges]) -> Approval:
    return Approval(rollout=ID, digest="d" * 64, salt=SALT, nodes=nodes)


def approved(first: RolloutBegan) -> RolloutBegan:
    """Return a rollout for each of whose nodes one change is approved."""
    nodes = {one: foretold(change("/a")) for group in first.groups for one in group}
    return replace(first, approval=approval(nodes), salt=SALT)
