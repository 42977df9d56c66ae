"""Read the checkpoints of a caller's rollouts from the bus."""

from collections.abc import Sequence

from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.rollout.execution.checkpoint import RolloutCheckpoint
from localpuppet.rollout.wiring.rollout import RolloutWiring


async def known_head(
    wiring: RolloutWiring, rollout: RolloutId | None, owner: SignerName
) -> RolloutCheckpoint:
    """Return the checkpoint of a rollout; of the newest that can be resumed for `None`.

    Raises:
        InvalidInputError: The bus does not have it.
        IntegrityError: The checkpoint is not trusted.
    """
    async with wiring.fleet.connected() as kv:
        heads = wiring.heads(kv, owner)
        found = None if rollout is None else await heads.read(rollout)
        return (found or await heads.find(rollout)).head


async def known_heads(
    wiring: RolloutWiring, owner: SignerName, *, most: int
) -> Sequence[RolloutCheckpoint]:
    """Return the trusted checkpoints of a caller, the newest rollouts first, up to `most`."""
    async with wiring.fleet.connected() as kv:
        return await wiring.heads(kv, owner).all(most=most)
