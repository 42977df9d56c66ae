"""Hears what people say to a rollout: in its journal, and over the bus, each signed.

    /localpuppet/words/WHO GOES ON/WHO SPEAKS/ROLLOUT/ID     a word; the reply is where replies are

Owns: which words are believed, how many are listened to, and that each that can be believed gets a
signed reply. Refuses to know: what a word does (`word`), who may say one (`denied`).

Invariants: a word is heard once; an answer that says so is given when the journal has it; who fills
the bus with words keeps neither the rollout nor others' words up.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Protocol

from localpuppet.base.errors import LocalpuppetError, UnavailableError
from localpuppet.base.formats.names import SignerName
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.key_value import RefusedError, entries
from localpuppet.fleet.requests import exchange
from localpuppet.fleet.requests.lifetime import MAX_LIFETIME
from localpuppet.fleet.requests.messages import answer
from localpuppet.fleet.trust.quota import Quota
from localpuppet.fleet.trust.signing import MessageKind
from localpuppet.rollout.execution.events import Began, Event
from localpuppet.rollout.execution.state import State
from localpuppet.rollout.execution.words.message import SpokenWord, stale
from localpuppet.rollout.execution.words.word import Said, Word

if TYPE_CHECKING:
    from localpuppet.base.machine.ports import Clock
    from localpuppet.fleet.bus.key_value import KeyValue
    from localpuppet.fleet.trust.signing import Signer, Verifier

LOOK = 1.0  # seconds between two looks at the journal
AGAIN = 5.0  # seconds until a bus that was away is watched again
# Words that are listened to, until they expire.
WORDS = Quota(shared=200, reserve=50, few=5, each=20)

Take = Callable[[Said], str]


class Journal(Protocol):
    """What is asked of a rollout's journal; see `journal.Journal`."""

    def events(self) -> Sequence[tuple[str, Event]]:
        """Return what happened, the oldest first, each with its time."""
        ...

    def said(self, after: int) -> list[tuple[int, Word, str, str]]:
        """Return what was said in it after a number; see `journal.Journal`."""
        ...


class JournalEars:
    """Hears what is said on this machine, by whoever may write the journal.

    Args:
        journal: The journal.
        machine: What this machine calls itself.
        look: Seconds between two looks.
    """

    def __init__(self, journal: Journal, *, machine: str, look: float = LOOK) -> None:
        self._journal = journal
        self._machine = machine
        self._look = look

    async def hear(self, take: Take) -> None:
        """Hand over what is said; see `notes.Notes`."""
        last = 0
        while True:
            for number, word, caller, about in self._journal.said(last):
                last = number
                take(Said(word=word, caller=caller, machine=self._machine, about=about))
            await asyncio.sleep(self._look)


class BusEars:
    """Hears what is said on other machines.

    Args:
        kv: The store, connected.
        signer: Who goes on with the rollout.
        verifier: Tells whose signatures hold.
        journal: The rollout's.
        denied: Returns why somebody may not speak who is neither the rollout's caller nor goes on
            with it; empty where that person may.
        clock: Our clock.
    """

    def __init__(
        self,
        kv: "KeyValue",
        *,
        signer: "Signer",
        verifier: "Verifier",
        journal: Journal,
        denied: Callable[[SignerName], str],
        clock: "Clock",
    ) -> None:
        self._kv = kv
        self._signer = signer
        self._verifier = verifier
        self._journal = journal
        self._denied = denied
        self._clock = clock
        self._heard: dict[tuple[SignerName, str], int] = {}  # by whom and which -> until when

    async def hear(self, take: Take) -> None:
        """Hand over what is said; see `notes.Notes`.

        Returns where the bus does not let us watch; the journal is heard all the same.
        """
        prefix = layout.words_to(self._signer.name)
        began = State.of(event for _, event in self._journal.events()).began
        while True:
            try:
                watching = self._kv.watch(prefix, largest=layout.MAX_ASKING, parts=True)
                async with aclosing(watching) as changes:
                    async for change in changes:
                        for entry in entries(change):
                            await self._hear_one(entry.value, began, take)
            except RefusedError:
                return
            except UnavailableError:
                await asyncio.sleep(AGAIN)

    async def _hear_one(self, token: bytes, began: Began, take: Take) -> None:
        spoken = self._believed(token, began)
        if spoken is None:
            return
        problem = self._problem(spoken) or take(spoken.said)
        reply = answer(
            self._signer,
            spoken,
            problem or {"word": str(spoken.word)},
            clock=self._clock,
        )
        # The bus may refuse us an answer to this one: the others are to be heard all the same.
        with suppress(RefusedError):
            await exchange.reply(
                self._kv, reply, caller=spoken.caller, node=self._signer.name, request=spoken.jti
            )

    def _believed(self, token: bytes, began: Began) -> SpokenWord | None:
        """Return the word where it is its signer's own, for this rollout, and new; else `None`.

        Anything else is passed over without a reply.
        """
        try:
            signed = self._verifier.verify(token, MessageKind.WORD)
            spoken = SpokenWord.parse(signed.payload)
        except LocalpuppetError:
            return None
        meant = (spoken.owner.caller, spoken.rollout) == (began.caller, began.id)
        if spoken.caller != signed.signer or spoken.receiver != self._signer.name or not meant:
            return None
        now = int(self._clock.now().timestamp())
        self._heard = {which: until for which, until in self._heard.items() if until > now}
        which = (spoken.caller, spoken.jti)
        own = sum(caller == spoken.caller for caller, _ in self._heard)
        if which in self._heard or not WORDS.has_room(own=own, total=len(self._heard)):
            return None
        self._heard[which] = min(spoken.exp, now + MAX_LIFETIME)
        return spoken

    def _problem(self, spoken: SpokenWord) -> str:
        """Return why a word is not taken, one line; empty where it may be."""
        if spoken.caller not in (self._signer.name, spoken.owner) and (
            denied := self._denied(spoken.caller)
        ):
            return denied
        now = int(self._clock.now().timestamp())
        events = self._journal.events()
        epoch = State.of(event for _, event in events).epoch
        return stale(spoken, now=now, epoch=epoch, events=events)
