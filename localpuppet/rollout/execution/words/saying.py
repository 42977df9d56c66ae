"""Says a word to the process that goes on with a rollout, wherever that is, and hears its answer.

    the rollout's head -> who goes on, in which epoch -> a signed word -> the signed reply

Owns: whom a word is said to, and what silence means. Refuses to know: what the word does there.
"""

import asyncio
import uuid
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.fleet.bus import layout
from localpuppet.fleet.requests.exchange import Replies
from localpuppet.fleet.requests.messages import LIFE, read_answer
from localpuppet.fleet.trust.signing import MessageKind
from localpuppet.rollout.execution.heads import Heads, KeptHead
from localpuppet.rollout.execution.state import State
from localpuppet.rollout.execution.words.message import Sight, SpokenWord
from localpuppet.rollout.execution.words.word import Word

if TYPE_CHECKING:
    from localpuppet.base.formats.names import RolloutId, SignerName
    from localpuppet.base.machine.ports import Clock
    from localpuppet.fleet.bus.key_value import KeyValue
    from localpuppet.fleet.trust.signing import Signer, Verifier

PATIENCE = 20.0  # for an answer, in seconds
# Heads lag behind: how often one that knows of no pause yet is looked at, and after how many
# seconds again.
LOOKS, PACE = 5, 1.0


async def look(
    heads: Heads, rollout: "RolloutId | None", word: Word, *, pace: float = PACE
) -> KeptHead:
    """Return the head of the rollout that a word is for; with its pause, where the word ends one.

    Args:
        heads: Where.
        rollout: Which; the newest for `None`.
        word: The word.
        pace: Seconds between two looks.

    Raises:
        IntegrityError: See `Heads.read`.
        InvalidInputError: There is none, or it is over, or does not wait for this word.
    """
    for _ in range(LOOKS):
        found = await heads.find(rollout)
        events = [event for _, event in found.head.events]
        if word not in (Word.CONTINUE, Word.APPROVE):
            return found
        if not events:
            raise InvalidInputError(
                "has a journal that is too large for the bus: nobody sees here what it waits for",
                where=str(found.head.rollout),
                hint=f"say it on the machine of {found.signer} where it goes on, or stop it",
            )
        if State.of(events).waits:
            return found
        await asyncio.sleep(pace)
    raise InvalidInputError("does not wait for a word", where=str(found.head.rollout))


class Speaker:
    """Says words in somebody's name.

    Args:
        kv: The store, connected.
        signer: Who speaks.
        verifier: Tells whose signatures hold.
        clock: Our clock.
        machine: What this machine calls itself.
        patience: Seconds to wait for an answer.
    """

    def __init__(
        self,
        kv: "KeyValue",
        *,
        signer: "Signer",
        verifier: "Verifier",
        clock: "Clock",
        machine: str,
        patience: float = PATIENCE,
    ) -> None:
        self._kv = kv
        self._signer = signer
        self._verifier = verifier
        self._clock = clock
        self._machine = machine
        self._patience = patience

    async def say(self, word: Word, *, owner: "SignerName", to: KeptHead, about: str = "") -> None:
        """Say a word; it is in the rollout's journal when this returns.

        Args:
            word: The word.
            owner: Whose rollout it is.
            to: The head of the rollout, as the bus has it now.
            about: What the word is about, see `Said`.

        Raises:
            InvalidInputError: It is refused there, with the reason.
            UnavailableError: Nobody answered: whether it is heard is unknown.
        """
        spoken = replace(self._spoken(word, owner, to), about=about)
        token = self._signer.sign(spoken.to_payload(), MessageKind.WORD)
        place = layout.words_of(self._signer.name, to.signer) + f"{spoken.rollout}/{spoken.jti}"
        problem = f"nobody who goes on with it answered within {self._patience:g} s"
        try:
            async with (
                asyncio.timeout(self._patience),
                Replies(self._kv, self._signer.name, to.signer) as replies,
                aclosing(
                    replies.ask(token, at=place, node=to.signer, request=spoken.jti, ttl=LIFE)
                ) as tokens,
            ):
                async for found in tokens:
                    try:
                        reply = read_answer(self._verifier, found, spoken, clock=self._clock)
                    except LocalpuppetError as error:
                        problem = f"something answered that is not to be believed: {error}"
                        continue
                    if not reply.ok:
                        raise InvalidInputError(reply.error or "", where=str(spoken.rollout))
                    return
        except TimeoutError:
            raise UnavailableError(
                problem,
                where=str(spoken.rollout),
                hint="who went on with it may be gone: its holds end by themselves, and"
                " 'localpuppet rollout resume' goes on",
            ) from None

    def _spoken(self, word: Word, owner: "SignerName", to: KeptHead) -> SpokenWord:
        now = int(self._clock.now().timestamp())
        return SpokenWord(
            caller=self._signer.name,
            receiver=to.signer,
            iat=now,
            exp=now + LIFE,
            jti=str(uuid.uuid4()),
            owner=owner,
            rollout=to.head.rollout,
            epoch=to.head.epoch,
            sight=Sight.of(to.head.events),
            word=word,
            machine=self._machine,
        )
