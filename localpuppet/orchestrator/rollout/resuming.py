"""Takes a rollout up again, on the machine that began it or on another of the same caller.

    its journal here, its head on the bus -> the newer of both -> claim the next epoch

Owns: which of the two counts. Refuses to know: how the rollout then goes on (`executing`).

Invariant: whoever has claimed an epoch goes on alone: another process of this machine is kept away
by the journal's lock, one elsewhere by the head's revision, and nodes hear the newest epoch only.
"""

from collections.abc import Callable
from dataclasses import dataclass

from localpuppet.bus.key_value import RefusedError
from localpuppet.errors import InvalidInputError, LocalpuppetError
from localpuppet.formats.names import RolloutId
from localpuppet.orchestrator.rollout.head import Head
from localpuppet.orchestrator.rollout.heads import Heads
from localpuppet.orchestrator.rollout.journal import Journal, Journals, resumable
from localpuppet.orchestrator.rollout.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenUp:
    """A rollout that this process goes on with.

    Attributes:
        journal: Its journal, taken; whoever has this closes it.
        epoch: The epoch that begins now.
        revision: That of the head which says so; `None` where the bus does not let us say.
    """

    journal: Journal
    epoch: int
    revision: int | None


async def take_up(
    rollout: RolloutId | None,
    *,
    journals: Journals,
    heads: Heads,
    caller: str,
    note: Callable[[str], None],
) -> TakenUp:
    """Take a rollout up; the newest that can go on for `None`.

    Raises:
        BusyError: Another process goes on with it, here or elsewhere.
        InvalidInputError: There is none, or it is over, another's, or known elsewhere only.
        IntegrityError: The head on the bus is not the caller's.
        UnavailableError: The bus cannot be asked.
        StateError: The journal cannot be read or written.
    """
    wanted = rollout or _newest_here(journals) or await _newest_there(heads)
    found = None
    if wanted is not None:
        try:
            found = await heads.read(wanted)
        except RefusedError as error:
            note(f"warning: whether it was resumed elsewhere is not known: {error}")
    if wanted is None or (found is None and wanted not in journals.ids()):
        raise InvalidInputError(
            f"neither this machine nor the bus knows rollout {wanted}"
            if wanted
            else "no rollout of yours can go on, by this machine and by the bus",
            where="rollout",
            hint="localpuppet rollout list, on the machine where it began",
        )
    here = wanted in journals.ids()
    journal = journals.place(wanted)
    journal.take()
    try:
        head = None if found is None else found.head
        revision = None if found is None else found.revision
        epoch = journal.state().epoch if here else 0
        if head is not None:
            epoch = max(_newer_of(journal, head, here=epoch), head.epoch)
        resumable(journal, caller)
        claimed = Head(rollout=wanted, epoch=epoch + 1, events=tuple(journal.events()))
        try:
            revision = await heads.write(claimed, revision)
        except RefusedError:
            revision = None
        return TakenUp(journal=journal, epoch=epoch + 1, revision=revision)
    except LocalpuppetError:
        journal.close()
        raise


def head_of(journal: Journal) -> Head:
    """Return the head that a journal comes to.

    Raises:
        StateError: The journal cannot be read.
    """
    events = journal.events()
    state = State.of(event for _, event in events)
    over = not state.resumable
    shown = () if over else tuple(events)
    return Head(rollout=state.began.id, epoch=state.epoch, events=shown, over=over)


def _newer_of(journal: Journal, head: Head, *, here: int) -> int:
    """Have the journal say what the head says, where that is newer; return its epoch."""
    if head.over:
        raise InvalidInputError("is over: it went on elsewhere", where=str(head.rollout))
    there = State.of(event for _, event in head.events).epoch if head.events else 0
    if there > here:
        journal.replace(head.events)
        return there
    if not here or (not head.events and head.epoch > here):
        raise InvalidInputError(
            "has a journal that is too large for the bus, and the newest is not on this machine",
            where=str(head.rollout),
            hint="resume it where it went on last; else its holds end by themselves",
        )
    return here


def _newest_here(journals: Journals) -> RolloutId | None:
    for rollout in journals.ids():
        journal = journals.open(rollout)
        try:
            if journal.state().resumable:
                return rollout
        finally:
            journal.close()
    return None


async def _newest_there(heads: Heads) -> RolloutId | None:
    try:
        return await heads.newest()
    except RefusedError:
        return None
