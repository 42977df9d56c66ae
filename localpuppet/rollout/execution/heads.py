"""Heads of journals on the bus: read, claimed by whoever goes on, and kept up to date behind it.

    /localpuppet/rollouts/CALLER/ID     a head of a caller's rollout, signed by who goes on with it

Owns: that of two who go on with a rollout one has its next epoch, and that a process that was
overtaken hears of it. Refuses to know: what events mean.

Invariants: an epoch is claimed by the revision of the key, so by one process; a head is believed
when its rollout's caller has signed it, or we, or somebody who may take rollouts over; a bus that
is away delays heads and stops nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localpuppet.base.errors import BusyError, IntegrityError, InvalidInputError, UnavailableError
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.key_value import RefusedError
from localpuppet.fleet.trust.signing import MessageKind
from localpuppet.rollout.execution.head import Head

if TYPE_CHECKING:
    from localpuppet.fleet.bus.key_value import Change, Entry, KeyValue
    from localpuppet.fleet.trust.signing import Signer, Verifier

# As long as nodes remember the turns of a rollout, in seconds.
TTL = 30 * 86400.0
# So long other machines can tell how it ended, and a process that was overtaken hears of it.
OVER_TTL = 7 * 86400.0
PACE = 1.0  # seconds between two writes, at least
AGAIN = 5.0  # seconds until a bus that was away is written to again


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptHead:
    """A head as the bus has it.

    Attributes:
        head: The head.
        revision: That of its key.
        signer: Who goes on with the rollout: the head is signed so.
    """

    head: Head
    revision: int
    signer: SignerName


class Heads:
    """The heads of one caller's rollouts.

    Args:
        kv: The store, connected.
        signer: Who writes them here.
        verifier: Tells whose signatures hold.
        denied: Returns why somebody may not take rollouts over; empty where that person may.
        owner: Whose rollouts they are; the signer's for `None`.
    """

    def __init__(
        self,
        kv: "KeyValue",
        *,
        signer: "Signer",
        verifier: "Verifier",
        denied: Callable[[SignerName], str],
        owner: SignerName | None = None,
    ) -> None:
        self._kv = kv
        self._signer = signer
        self._verifier = verifier
        self._denied = denied
        self.signer = signer.name
        self.owner = owner or signer.name

    async def read(self, rollout: RolloutId) -> KeptHead | None:
        """Return the head of a rollout; `None` where there is none.

        Raises:
            IntegrityError: What is there was signed by somebody who is not to be believed, or is of
                another rollout.
            InvalidInputError: What is there is not a head.
        """
        entry = await self._kv.get(self.key(rollout))
        return None if entry is None else self._verified(entry, rollout)

    def watch(self) -> "AsyncGenerator[Change, None]":
        """Follow the heads, without an end; see `KeyValue.watch`."""
        return self._kv.watch(layout.rollouts_of(self.owner))

    def believed(self, entry: "Entry") -> KeptHead:
        """Return the head in an entry of the bus; see `read`."""
        rollout = RolloutId.parse(entry.key.removeprefix(layout.rollouts_of(self.owner)))
        return self._verified(entry, rollout)

    def key(self, rollout: RolloutId) -> str:
        """Return where the head of a rollout is."""
        return layout.rollouts_of(self.owner) + rollout

    def _verified(self, entry: "Entry", rollout: RolloutId) -> KeptHead:
        signed = self._verifier.verify(entry.value, MessageKind.ROLLOUT)
        if signed.signer not in (self.owner, self._signer.name) and (
            why := self._denied(signed.signer)
        ):
            raise IntegrityError(
                f"was signed by {signed.signer}, not by {self.owner} ({why})", where=entry.key
            )
        head = Head.parse(signed.payload, caller=self.owner.caller)
        if head.rollout != rollout:
            raise IntegrityError(f"is the head of rollout {head.rollout}", where=entry.key)
        return KeptHead(head=head, revision=entry.revision, signer=signed.signer)

    async def find(self, rollout: RolloutId | None) -> KeptHead:
        """Return the head of a rollout that can go on; of the newest for `None`.

        Raises:
            IntegrityError: See `read`.
            InvalidInputError: There is none, or it is over, or not a head.
        """
        wanted = rollout or await self.newest()
        found = None if wanted is None else await self.read(wanted)
        if found is None:
            mine = f"rollout {rollout} of {self.owner}"
            raise InvalidInputError(
                "the bus does not know "
                f"{mine if rollout else f'a rollout of {self.owner} that can go on'}",
                where="rollout",
                hint="name whose it is: --of NAME",
            )
        if found.head.over:
            raise InvalidInputError("is over", where=str(found.head.rollout))
        return found

    async def newest(self) -> RolloutId | None:
        """Return the caller's newest rollout whose head says that it can go on; `None` for none.

        What is not a head of the caller's is passed over: whoever may write to the bus could keep
        the caller from all rollouts with it.
        """
        for entry in await self._entries():
            with suppress(IntegrityError, InvalidInputError):
                head = self.believed(entry).head
                if not head.over:
                    return head.rollout
        return None

    async def all(self, *, most: int) -> "list[Head]":
        """Return the heads that are to be believed, the newest rollouts first, at most so many."""
        found = []
        for entry in await self._entries():
            with suppress(IntegrityError, InvalidInputError):
                found.append(self.believed(entry).head)
            if len(found) == most:
                break
        return found

    async def _entries(self) -> "list[Entry]":
        """Return what is there, the newest rollouts first."""
        listing = await self._kv.list(layout.rollouts_of(self.owner))
        return sorted(listing.entries, key=lambda entry: entry.key, reverse=True)

    async def write(self, head: Head, revision: int | None) -> int:
        """Write a head over the one with a revision, or the first one; return its revision.

        Raises:
            UnavailableError: It is unknown whether it is there.
            BusyError: Somebody else has written one.
        """
        token = self._signer.sign(head.to_payload(), MessageKind.ROLLOUT)
        key = self.key(head.rollout)
        ttl = OVER_TTL if head.over else TTL
        if revision is None:
            written = await self._kv.add_if_new(key, token, ttl=ttl)
        else:
            written = await self._kv.set_if_revision(key, token, revision, ttl=ttl)
        if written is None:
            raise BusyError(f"somebody else goes on with rollout {head.rollout}")
        return written


class HeadKeeper:
    """Keeps the head of one rollout up to date, behind its journal.

    Args:
        heads: Where.
        rollout: Which.
        current: Returns the head that the journal comes to.
        revision: That of the head which this process has written; `None` before the first.
        note: Takes what a person should read.
    """

    def __init__(
        self,
        heads: Heads,
        rollout: RolloutId,
        *,
        current: Callable[[], Head],
        revision: int | None,
        note: Callable[[str], None],
    ) -> None:
        self._heads = heads
        self._rollout = rollout
        self._current = current
        self._revision = revision
        self._note = note
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Have the head written again, soon."""
        self._changed.set()

    async def run(self) -> None:
        """Write the head whenever it has changed, for as long as it may be written.

        Raises:
            BusyError: The rollout was resumed elsewhere: this process is to end.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.write()
            except (RefusedError, IntegrityError, InvalidInputError) as error:
                self._note(f"warning: only this machine can resume the rollout: {error}")
                return
            except UnavailableError:
                self._changed.set()
                await asyncio.sleep(AGAIN)
            await asyncio.sleep(PACE)

    async def is_ours(self) -> bool:
        """Return whether the head on the bus is one that this process has written.

        Where that cannot be seen it is not.
        """
        try:
            found = await self._heads.read(self._rollout)
        except (UnavailableError, IntegrityError, InvalidInputError):
            return False
        mine = self._current().epoch
        return found is not None and (found.signer, found.head.epoch) == (self._heads.signer, mine)

    async def write(self) -> None:
        """Write the head as it is now.

        Raises:
            UnavailableError: It is unknown whether that was done.
            BusyError: The rollout was resumed elsewhere.
            IntegrityError: Somebody else has written something there.
            InvalidInputError: What is there is not a head.
        """
        head = self._current()
        try:
            self._revision = await self._heads.write(head, self._revision)
        except BusyError:
            await self._write_over(head)

    async def _write_over(self, head: Head) -> None:
        """Write over a head of our own: an answer was lost, or the key expired."""
        found = await self._heads.read(self._rollout)
        if found is not None and found.head.epoch > head.epoch:
            raise BusyError(
                f"rollout {self._rollout} was resumed elsewhere (epoch {found.head.epoch}, this is"
                f" {head.epoch})"
            )
        self._revision = await self._heads.write(head, None if found is None else found.revision)
