"""The rollouts of a signer: their journals on this machine, their checkpoints on the bus."""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from localpuppet.base.errors import (
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    UnavailableError,
)
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.fleet.bus.key_value import KeyValue, RefusedError
from localpuppet.fleet.trust.policy import TAKEOVER
from localpuppet.fleet.trust.policy_file import refusal
from localpuppet.fleet.wiring.fleet import FleetWiring, machine_name
from localpuppet.fleet.wiring.settings import peers
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.rollout.execution.checkpoint import RolloutCheckpoint
from localpuppet.rollout.execution.checkpoints import RolloutCheckpoints
from localpuppet.rollout.execution.commands.command import RolloutCommand
from localpuppet.rollout.execution.commands.sending import CommandSender, look
from localpuppet.rollout.execution.journals import Journals
from localpuppet.rollout.execution.state import RolloutState


class FleetRollouts:
    """The rollouts of this root's signer, and those of others that it may take over.

    Args:
        node: The settings of the root.
    """

    def __init__(self, node: NodeWiring) -> None:
        self._node = node
        self.fleet = FleetWiring(node)

    @cached_property
    def journals(self) -> Journals:
        """The journals of this machine."""
        return Journals(self._node.settings.state / "rollouts")

    @property
    def caller(self) -> str:
        """The caller id of this root's signer."""
        return self.fleet.signer.name.caller

    def new_id(self) -> RolloutId:
        """Return the id of a rollout that begins now."""
        newest = next(iter(self.journals.ids()), None)
        return RolloutId.of(self._node.clock.now(), os.urandom(2).hex(), newest)

    def heads(self, kv: KeyValue, owner: SignerName | None = None) -> RolloutCheckpoints:
        """Return the checkpoints of a caller's rollouts; of this signer's for `None`."""
        return RolloutCheckpoints(
            kv,
            signer=self.fleet.signer,
            verifier=self.fleet.verifier,
            denied=self.denied,
            owner=owner,
        )

    def denied(self, caller: SignerName) -> str:
        """Return why a signer may not take rollouts over here; empty if they may."""
        try:
            return refusal(peers(self._node).policy, caller, TAKEOVER)
        except LocalpuppetError as error:
            return str(error)

    async def say(
        self,
        command: RolloutCommand,
        rollout: RolloutId | None,
        owner: SignerName | None,
        *,
        about: Callable[[RolloutState], str],
    ) -> RolloutCheckpoint:
        """Send a command to the controller of a rollout on another machine.

        Args:
            command: The command.
            rollout: The rollout; the newest that is running for `None`.
            owner: The caller of the rollout; `None` for this signer.
            about: Returns what the command refers to, from the state in the checkpoint.

        Returns:
            The checkpoint that named the controller.

        Raises:
            InvalidInputError: There is no such rollout, or the controller rejected the command.
            UnavailableError: The bus is unreachable, or the controller did not reply.
            IntegrityError: The checkpoint is not trusted.
        """
        async with self.fleet.connected() as kv:
            heads = self.heads(kv, owner)
            published = await look(heads, rollout, command)
            speaker = CommandSender(
                kv,
                signer=self.fleet.signer,
                verifier=self.fleet.verifier,
                clock=self._node.clock,
                machine=machine_name(),
            )
            events = [event for _, event in published.head.events]
            text = about(RolloutState.of(events)) if events else ""
            await speaker.say(command, owner=heads.owner, to=published, about=text)
        return published.head

    async def commanded(
        self, command: RolloutCommand, rollout: RolloutId | None, owner: SignerName | None
    ) -> RolloutCheckpoint:
        """Return the checkpoint of the rollout that a command is for; see `look`."""
        async with self.fleet.connected() as kv:
            return (await look(self.heads(kv, owner), rollout, command)).head

    async def elsewhere(self, state: RolloutState, *, newest: bool) -> RolloutId | None:
        """Return what a command is for in place of a rollout that no process controls here.

        Args:
            state: Its state by the journal of this machine.
            newest: Whether a newer rollout of its caller is meant in its place.

        Returns:
            The newer rollout, or this one if it continued on another machine; `None` if neither
            is known.

        Raises:
            UnavailableError: The bus is unreachable, and the rollout is not over here.
        """
        mine, owner = state.began.id, SignerName.parse_caller(state.began.caller)
        try:
            async with self.fleet.connected() as kv:
                last = await self.heads(kv, owner).newest() if newest else None
                if last is not None and last.head.rollout > mine:
                    return last.head.rollout
            return mine if await self.newer_heads([state], lambda _: None) else None
        except UnavailableError as error:
            if state.over is None and not isinstance(error, RefusedError):
                raise
            return None

    async def newer_heads(
        self, states: Iterable[RolloutState], note: Callable[[str], None]
    ) -> dict[RolloutId, RolloutCheckpoint]:
        """Return the checkpoints of rollouts that continued on other machines.

        Args:
            states: The states of these rollouts by the journals of this machine.
            note: Receives why a checkpoint is rejected.
        """
        heads = {}
        async with self.fleet.connected() as kv:
            for state in states:
                rollout, owner = state.began.id, SignerName.parse_caller(state.began.caller)
                try:
                    kept = await self.heads(kv, owner).read(rollout)
                except (RefusedError, IntegrityError, InvalidInputError) as error:
                    note(f"rollout {rollout}: cannot tell whether it continued elsewhere: {error}")
                    continue
                if kept is not None and kept.head.epoch > state.epoch:
                    heads[rollout] = kept.head
        return heads


async def known_head(
    rollouts: FleetRollouts, rollout: RolloutId | None, owner: SignerName | None
) -> RolloutCheckpoint:
    """Return the checkpoint of a rollout; of the newest for `None`.

    The owner is this signer for `None`.

    Raises:
        InvalidInputError: The bus does not have it.
        IntegrityError: The checkpoint is not trusted.
    """
    async with rollouts.fleet.connected() as kv:
        heads = rollouts.heads(kv, owner)
        published = await (heads.newest() if rollout is None else heads.read(rollout))
        return (published or await heads.find(rollout)).head


async def known_heads(
    rollouts: FleetRollouts, owner: SignerName, *, most: int
) -> Sequence[RolloutCheckpoint]:
    """Return the trusted checkpoints of a caller, the newest rollouts first, up to `most`."""
    async with rollouts.fleet.connected() as kv:
        return await rollouts.heads(kv, owner).all(most=most)
