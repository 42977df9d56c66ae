"""Resume a rollout on the machine that began it or another, for its caller or another one.

    local journal, checkpoint on the bus -> the newer of both -> claim the next epoch

- One controller has an epoch. The journal's lock keeps out other processes of this machine, the
  checkpoint's revision keeps out other machines, and nodes obey only the newest epoch.
- A controller that takes over another caller's rollout asks the nodes first. If one refuses,
  nothing changes.
- A damaged or forged checkpoint does not stop the caller on the machine with the journal: the
  nodes report then whether another controller has the rollout.
- Only the caller defines what the rollout does. From a checkpoint of a third party counts only
  what happened since.
"""

from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC
from typing import NamedTuple

from localpuppet.base.errors import (
    BusyError,
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    UnavailableError,
)
from localpuppet.base.formats.names import NodeName, RolloutId, SignerName
from localpuppet.base.formats.times import parse_time
from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.fleet.bus.key_value import RefusedError
from localpuppet.fleet.requests.request import (
    Arguments,
    RolloutReference,
    StatusRequest,
    requesting_rollout,
)
from localpuppet.fleet.requests.request_client import RequestClient
from localpuppet.rollout.checkpoints import (
    PublishedCheckpoint,
    RolloutCheckpoint,
    RolloutCheckpoints,
    Summary,
)
from localpuppet.rollout.deliveries import PATIENCE
from localpuppet.rollout.events import RolloutBegan, RolloutTakenOver
from localpuppet.rollout.journal import JournalReader, Journals, JournalWriter, owned, resumable
from localpuppet.rollout.rollout_report import RolloutReport
from localpuppet.rollout.state import RolloutState

# Epochs to skip if the checkpoint is not trusted: so often the rollout may have been resumed
# elsewhere unseen. Nodes obey only the newest epoch.
BLIND = 10


class ResumedRollout(NamedTuple):
    """A rollout that this process resumes; the revision is that of the claimed checkpoint."""

    journal: JournalWriter
    epoch: int
    revision: int | None


async def take_up(
    rollout: RolloutId | None,
    *,
    journals: Journals,
    heads: RolloutCheckpoints,
    problem: Callable[[RolloutState], Awaitable[str]] | None,
    note: Callable[[str], None],
) -> ResumedRollout:
    """Claim the next epoch of a rollout; for `None`, of the newest that can be resumed.

    `problem` returns why this controller cannot take the rollout over; it is `None` for an own one.
    """
    caller = heads.owner.caller
    wanted = rollout or _newest_here(journals, caller) or await _newest_there(heads)
    own, here = problem is None, wanted in journals.ids()
    published, blind = None, 0
    if wanted is not None:
        published, blind = await _read(heads, wanted, own=own, here=here, note=note)
    if wanted is None or (published is None and not here):
        raise InvalidInputError(
            f"neither this machine nor the bus knows rollout {wanted}"
            if wanted
            else f"neither this machine nor the bus has a rollout of {caller} that can be resumed",
            where="rollout",
            hint="run 'localpuppet rollout list' on the machine where it began",
        )
    if problem is not None:
        await _check_over(journals.open(wanted) if here else None, published, problem)
    journal = journals.take(wanted)
    try:
        revision = None if published is None else published.revision
        epoch = (_epoch(journal, caller) if here else 0) + blind
        if published is not None:
            newer = _newer_of(journal, published, here=epoch, heads=heads)
            epoch = max(newer, published.head.epoch)
        resumable(journal, caller)
        claimed = RolloutCheckpoint(rollout=wanted, epoch=epoch + 1, events=tuple(journal.events()))
        try:
            if not blind:
                revision = await heads.write(claimed, revision)
        except RefusedError:
            if problem is not None:
                raise
            revision = None
        return ResumedRollout(journal=journal, epoch=epoch + 1, revision=revision)
    except LocalpuppetError:
        journal.close()
        raise


async def _read(
    heads: RolloutCheckpoints,
    rollout: RolloutId,
    *,
    own: bool,
    here: bool,
    note: Callable[[str], None],
) -> tuple[PublishedCheckpoint | None, int]:
    """Return the trusted checkpoint of a rollout, and the number of epochs to skip."""
    try:
        return await heads.read(rollout), 0
    except RefusedError as error:
        if not own:
            raise
        note(f"warning: cannot tell whether it was resumed elsewhere: {error}")
        return None, 0
    except (IntegrityError, InvalidInputError) as error:
        if not (own and here):
            raise
        note(
            f"warning: resuming from the local journal, because the checkpoint is not trusted:"
            f" {error}"
        )
        return None, BLIND


def head_of(journal: JournalReader) -> RolloutCheckpoint:
    events = journal.events()
    report = RolloutReport.of(events, taken=False)
    state, over = report.state, not report.state.resumable
    return RolloutCheckpoint(
        rollout=state.began.id,
        epoch=state.epoch,
        events=() if over else tuple(events),
        over=over,
        summary=Summary.of(report) if over else None,
    )


def _newer_of(
    journal: JournalWriter, published: PublishedCheckpoint, *, here: int, heads: RolloutCheckpoints
) -> int:
    """Replace the journal's events by the checkpoint's if these are newer; return the epoch."""
    head = published.head
    if head.over:
        raise InvalidInputError("is over: it continued elsewhere", where=str(head.rollout))
    there = head.state.epoch if head.state else 0
    if there > here:
        _check_beginning(journal if here else None, published, heads)
        journal.replace(head.events)
        return there
    if not here or (not head.events and head.epoch > here):
        raise InvalidInputError(
            "has a journal that is too large for the bus, and the newest is not on this machine",
            where=str(head.rollout),
            hint="resume it on the machine that controlled it last; otherwise its holds expire",
        )
    return here


def _check_beginning(
    journal: JournalReader | None, published: PublishedCheckpoint, heads: RolloutCheckpoints
) -> None:
    """Reject a checkpoint in which a third party changed what the rollout does.

    The controller would do that with all its rights, on the nodes and on this machine. An operator
    who takes a rollout over vouches for its caller only.
    """
    if published.signer in (heads.owner, heads.signer):
        return
    if journal is None and heads.owner != heads.signer:
        return
    _, first_event = published.head.events[0]
    if journal is None or journal.state().began != first_event:
        known = "is unknown here" if journal is None else "differs from the journal here"
        raise IntegrityError(
            f"was last taken over by {published.signer}, and its start event {known}",
            where=str(published.head.rollout),
            hint="resume it where it began, or ask the person who took it over to resume it",
        )


async def _check_over(
    journal: JournalReader | None,
    published: PublishedCheckpoint | None,
    problem: Callable[[RolloutState], Awaitable[str]],
) -> None:
    """Reject the takeover of a rollout before anything changes."""
    state = None if published is None else published.head.state
    if state is None and journal is not None:
        state = journal.state()
    if state is None:
        return  # unknown here, which `take_up` rejects later
    if state.resumable and (why := await problem(state)):
        raise InvalidInputError(
            f"cannot be taken over, and nothing was changed: {why}", where=str(state.began.id)
        )


def _epoch(journal: JournalReader, caller: str) -> int:
    state = journal.state()
    owned(state.began, caller)
    return state.epoch


def _newest_here(journals: Journals, caller: str) -> RolloutId | None:
    for rollout in journals.ids():
        with closing(journals.open(rollout)) as journal:
            state = journal.state()
        if state.began.caller == caller and state.resumable:
            return rollout
    return None


async def _newest_there(heads: RolloutCheckpoints) -> RolloutId | None:
    try:
        newest = await heads.newest(resumable=True)
    except RefusedError:
        return None
    return None if newest is None else newest.head.rollout


async def heed_refusal(
    client: RequestClient,
    began: RolloutBegan,
    believes: Callable[[RolloutTakenOver], Awaitable[bool]],
    node: NodeName,
    args: Arguments,
) -> None:
    """Check whether a node refused a request because another controller has the rollout.

    `believes` returns whether a node's report is trusted; this process has then already handed the
    rollout over.
    """
    rollout = requesting_rollout(args)
    if rollout is None:
        return
    asked = StatusRequest(rollout=RolloutReference(id=rollout.id, epoch=1, caller=rollout.caller))
    try:
        answer = await client.ask(node, "status", asked, patience=PATIENCE)
    except UnavailableError:
        return  # the node refuses again when the bus is reachable
    takeover = _parse_takeover(answer.result.get("rollout_controller"), began.caller)
    mine = rollout.taken_over_by(client.caller) or began.caller
    if takeover is None or takeover.epoch < rollout.epoch:
        return
    if (takeover.epoch, takeover.caller) != (rollout.epoch, mine) and await believes(takeover):
        raise BusyError(f"rollout {rollout.id} was taken over {takeover.who}")


def _parse_takeover(raw: Json, owner: str) -> RolloutTakenOver | None:
    """Return the controller that a node obeys; `None` if its report is malformed."""
    fields = mapping_of(raw)
    epoch, by, since = (fields.get(key) for key in ("epoch", "by", "since"))
    if not isinstance(epoch, int) or not isinstance(by, str) or not isinstance(since, str):
        return None
    try:
        at = parse_time(since).astimezone(UTC)
        caller = SignerName.parse_caller(by).caller if by else owner
    except (ValueError, OverflowError, InvalidInputError):
        return None
    return RolloutTakenOver(caller=caller, epoch=epoch, since=at)
