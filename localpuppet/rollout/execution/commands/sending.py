"""Send a command over the bus to the controller of a rollout, and receive its reply.

    the checkpoint -> the controller and its epoch -> a signed command -> the signed reply

`hearing` is the controller's side.
"""

import asyncio
import uuid
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, replace

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.requests.exchange import Replies
from localpuppet.fleet.requests.messages import LIFE, read_answer
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner, Verifier
from localpuppet.rollout.execution.checkpoints import PublishedCheckpoint, RolloutCheckpoints
from localpuppet.rollout.execution.commands.command import RolloutCommand, check_not_over
from localpuppet.rollout.execution.commands.message import SignedCommand, digest_of
from localpuppet.rollout.execution.state import RolloutState

PATIENCE = 20.0  # seconds for a reply
# Checkpoints lag behind: how often to look for a pause, and the seconds in between.
LOOKS, PACE = 5, 1.0


async def look(
    heads: RolloutCheckpoints,
    rollout: RolloutId | None,
    command: RolloutCommand,
    *,
    pace: float = PACE,
) -> PublishedCheckpoint:
    """Return the checkpoint of the rollout that a command is for, with the pause that it ends.

    Raises:
        IntegrityError: See `RolloutCheckpoints.read`.
        InvalidInputError: The rollout is unknown, over, or does not wait for this command.
    """
    for _ in range(LOOKS):
        published = await heads.find(rollout)
        events = [event for _, event in published.head.events]
        state = RolloutState.of(events) if events else None
        if state is not None and state.epoch == published.head.epoch:  # not yet resumed
            check_not_over(command, state)
        if command not in (RolloutCommand.CONTINUE, RolloutCommand.APPROVE):
            return published
        if state is None:
            raise InvalidInputError(
                "has a journal that is too large for the bus, so this machine cannot show why it"
                " waits",
                where=str(published.head.rollout),
                hint=f"decide on the machine of {published.signer} that controls it, or stop it",
            )
        if state.waits:
            return published
        await asyncio.sleep(pace)
    raise InvalidInputError("is not paused", where=str(published.head.rollout))


@dataclass(frozen=True, slots=True)
class CommandSender:
    """Sends commands in the name of one signer."""

    kv: KeyValue
    _: KW_ONLY
    signer: MessageSigner
    verifier: Verifier
    clock: Clock
    machine: str

    async def say(
        self,
        command: RolloutCommand,
        *,
        owner: SignerName,
        to: PublishedCheckpoint,
        about: str = "",
    ) -> None:
        """Send a command and wait until the rollout's journal has it.

        Args:
            command: The command.
            owner: The caller of the rollout.
            to: The current checkpoint of the rollout.
            about: What the command refers to, see `SentCommand`.

        Raises:
            InvalidInputError: The controller rejected it, with the reason.
            UnavailableError: No reply: the command may still be carried out.
        """
        spoken = replace(self._spoken(command, owner, to), about=about)
        token = self.signer.sign(spoken.to_payload(), MessageKind.COMMAND)
        place = layout.commands_of(self.signer.name, to.signer) + f"{spoken.rollout}/{spoken.jti}"
        problem = f"its controller did not reply within {PATIENCE:g} s"
        try:
            async with (
                asyncio.timeout(PATIENCE),
                Replies(self.kv, self.signer.name, to.signer) as replies,
                aclosing(
                    replies.ask(token, at=place, node=to.signer, request=spoken.jti, ttl=LIFE)
                ) as tokens,
            ):
                async for answer_token in tokens:
                    try:
                        reply = read_answer(self.verifier, answer_token, spoken, clock=self.clock)
                    except LocalpuppetError as error:
                        problem = f"rejected an untrusted reply: {error}"
                        continue
                    if not reply.ok:
                        raise InvalidInputError(reply.error or "", where=str(spoken.rollout))
                    return
        except TimeoutError:
            raise UnavailableError(
                problem,
                where=str(spoken.rollout),
                hint="its controller may be gone: its holds expire, and"
                " 'localpuppet rollout resume' continues it",
            ) from None

    def _spoken(
        self, command: RolloutCommand, owner: SignerName, to: PublishedCheckpoint
    ) -> SignedCommand:
        now = int(self.clock.now().timestamp())
        return SignedCommand(
            caller=self.signer.name,
            receiver=to.signer,
            iat=now,
            exp=now + LIFE,
            jti=str(uuid.uuid4()),
            owner=owner,
            rollout=to.head.rollout,
            epoch=to.head.epoch,
            events=len(to.head.events),
            digest=digest_of(to.head.events),
            command=command,
            machine=self.machine,
        )
