"""What the bus has of somebody's rollouts, wherever they go on, or went on."""

from collections.abc import Sequence

from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.rollout.execution.head import Head
from localpuppet.rollout.wiring.rollout import RolloutWiring


async def known_head(wiring: RolloutWiring, rollout: RolloutId | None, owner: SignerName) -> Head:
    """Return what the bus has of a rollout; of the newest that can go on for `None`.

    Args:
        wiring: The parts of a rollout.
        rollout: Which.
        owner: Whose.

    Raises:
        InvalidInputError: There is none.
        IntegrityError: What is there is not to be believed.
    """
    async with wiring.fleet.connected() as kv:
        heads = wiring.heads(kv, owner)
        found = None if rollout is None else await heads.read(rollout)
        return (found or await heads.find(rollout)).head


async def known_heads(wiring: RolloutWiring, owner: SignerName, *, most: int) -> Sequence[Head]:
    """Return what the bus has of somebody's rollouts, the newest first, at most so many.

    Args:
        wiring: The parts of a rollout.
        owner: Whose.
        most: At most so many.
    """
    async with wiring.fleet.connected() as kv:
        return await wiring.heads(kv, owner).all(most=most)
