"""Takes a rollout up again, on the machine that began it or on another, by its caller or another.

    its journal here, its head on the bus -> the newer of both -> claim the next epoch

Owns: which of the two counts. Refuses to know: how the rollout then goes on (`executing`).

Invariant: whoever has claimed an epoch goes on alone: another process of this machine is kept away
by the journal's lock, one elsewhere by the head's revision, and nodes hear the newest epoch only.
Who takes another's rollout over asks the nodes first: where one of them refuses, nothing changes.
What others write over the head keeps its caller from nothing where the journal is: the nodes say
then whether somebody else goes on. What is to be done its caller says: of what somebody else says
who took it over only counts what became of it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from localpuppet.base.errors import IntegrityError, InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import RolloutId
from localpuppet.fleet.bus.key_value import RefusedError
from localpuppet.rollout.execution.head import Head, Summary
from localpuppet.rollout.execution.heads import Heads, KeptHead
from localpuppet.rollout.execution.journal import Journal, owned, resumable
from localpuppet.rollout.execution.journals import Journals
from localpuppet.rollout.execution.report import Report
from localpuppet.rollout.execution.state import State

# Where the head is not to be believed, epochs that are passed over: as often as a rollout may have
# been resumed elsewhere unseen. Nodes hear the newest.
BLIND = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenUp:
    """A rollout that this process goes on with.

    Attributes:
        journal: Its journal, taken; whoever has this closes it.
        epoch: The epoch that begins now.
        revision: That of the head which says so; `None` where we do not say.
    """

    journal: Journal
    epoch: int
    revision: int | None


async def take_up(
    rollout: RolloutId | None,
    *,
    journals: Journals,
    heads: Heads,
    problem: Callable[[State], Awaitable[str]] | None,
    note: Callable[[str], None],
) -> TakenUp:
    """Take a rollout up; the newest that can go on for `None`.

    Args:
        rollout: Which.
        journals: Those of this machine.
        heads: Those of its caller's rollouts.
        problem: Returns why we cannot take it over from another; `None` where it is our own.
        note: Takes what a person should read.

    Raises:
        BusyError: Another process goes on with it, here or elsewhere.
        InvalidInputError: There is none, or it is over, another's, or known elsewhere only; or it
            cannot be taken over.
        IntegrityError: The head on the bus is not the caller's, and there is no journal here; or it
            is of somebody who took it over and says that something else is to be done.
        StateError: The journal cannot be read or written.
    """
    caller = heads.owner.caller
    wanted = rollout or _newest_here(journals, caller) or await _newest_there(heads)
    found, blind = None, 0
    if wanted is not None:
        without = problem is None and wanted in journals.ids()
        found, blind = await _read(heads, wanted, own=problem is None, without=without, note=note)
    if wanted is None or (found is None and wanted not in journals.ids()):
        raise InvalidInputError(
            f"neither this machine nor the bus knows rollout {wanted}"
            if wanted
            else f"neither this machine nor the bus knows a rollout of {caller} that can go on",
            where="rollout",
            hint="localpuppet rollout list, on the machine where it began",
        )
    here = wanted in journals.ids()
    journal = journals.place(wanted)
    if problem is not None:
        await _check_over(journal if here else None, found, problem)
    journal.take()
    try:
        revision = None if found is None else found.revision
        epoch = (_epoch(journal, caller) if here else 0) + blind
        if found is not None:
            newer = _newer_of(journal, found, here=epoch, heads=heads)
            epoch = max(newer, found.head.epoch)
        resumable(journal, caller)
        claimed = Head(rollout=wanted, epoch=epoch + 1, events=tuple(journal.events()))
        try:
            if not blind:
                revision = await heads.write(claimed, revision)
        except RefusedError:
            if problem is not None:
                raise
            revision = None
        return TakenUp(journal=journal, epoch=epoch + 1, revision=revision)
    except LocalpuppetError:
        journal.close()
        raise


async def _read(
    heads: Heads, rollout: RolloutId, *, own: bool, without: bool, note: Callable[[str], None]
) -> tuple[KeptHead | None, int]:
    """Return the head of a rollout as far as it is known, and how many epochs are passed over.

    Args:
        heads: Where.
        rollout: Which.
        own: Whether it can be our own that goes on where the bus does not let us read.
        without: Whether it can go on where somebody else wrote there.
        note: Takes what a person should read.
    """
    try:
        return await heads.read(rollout), 0
    except RefusedError as error:
        if not own:
            raise
        note(f"warning: whether it was resumed elsewhere is not known: {error}")
        return None, 0
    except (IntegrityError, InvalidInputError) as error:
        if not without:
            raise
        note(f"warning: it goes on by the journal here, as its head is not to be believed: {error}")
        return None, BLIND


def head_of(journal: Journal) -> Head:
    """Return the head that a journal comes to."""
    events = journal.events()
    report = Report.of(events, taken=False)
    state, over = report.state, not report.state.resumable
    return Head(
        rollout=state.began.id,
        epoch=state.epoch,
        events=() if over else tuple(events),
        over=over,
        summary=Summary.of(report) if over else None,
    )


def _newer_of(journal: Journal, found: KeptHead, *, here: int, heads: Heads) -> int:
    """Have the journal say what the head says, where that is newer; return its epoch."""
    head = found.head
    if head.over:
        raise InvalidInputError("is over: it went on elsewhere", where=str(head.rollout))
    there = State.of(event for _, event in head.events).epoch if head.events else 0
    if there > here:
        _check_beginning(journal if here else None, found, heads)
        journal.replace(head.events)
        return there
    if not here or (not head.events and head.epoch > here):
        raise InvalidInputError(
            "has a journal that is too large for the bus, and the newest is not on this machine",
            where=str(head.rollout),
            hint="resume it where it went on last; else its holds end by themselves",
        )
    return here


def _check_beginning(journal: Journal | None, found: KeptHead, heads: Heads) -> None:
    """Refuse what another person says that the caller's rollout is to do.

    That would be done in the name of whoever resumes, with all rights of that person, on the nodes
    and on this machine. Who takes a rollout over says whose word that is to be, and no more.

    Raises:
        IntegrityError: The head is neither its caller's nor ours, and says something else of the
            rollout's beginning than we know.
    """
    if found.signer in (heads.owner, heads.signer):
        return
    if journal is None and heads.owner != heads.signer:
        return
    _, told = found.head.events[0]
    if journal is None or journal.state().began != told:
        known = "is not known here" if journal is None else "was another by the journal here"
        raise IntegrityError(
            f"was last taken over by {found.signer}, and what it was begun with {known}",
            where=str(found.head.rollout),
            hint="resume it where it began, or have it resumed by whoever took it over",
        )


async def _check_over(
    journal: Journal | None, found: KeptHead | None, problem: Callable[[State], Awaitable[str]]
) -> None:
    """Refuse to take a rollout over before anything changed.

    Raises:
        InvalidInputError: A node that it is about does not let us, or is not ready.
    """
    if found is not None and found.head.events:
        state = State.of(event for _, event in found.head.events)
    elif journal is not None:
        state = journal.state()
    else:
        return  # nothing is known of it here, which is refused below
    if state.resumable and (why := await problem(state)):
        raise InvalidInputError(
            f"cannot be taken over, and nothing was changed: {why}", where=str(state.began.id)
        )


def _epoch(journal: Journal, caller: str) -> int:
    state = journal.state()
    owned(state.began, caller)
    return state.epoch


def _newest_here(journals: Journals, caller: str) -> RolloutId | None:
    for rollout in journals.ids():
        journal = journals.open(rollout)
        try:
            state = journal.state()
            if state.began.caller == caller and state.resumable:
                return rollout
        finally:
            journal.close()
    return None


async def _newest_there(heads: Heads) -> RolloutId | None:
    try:
        return await heads.newest()
    except RefusedError:
        return None
