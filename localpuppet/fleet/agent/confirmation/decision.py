"""Decide whether a deployed release is confirmed, pending, or rolled back.

- For a release that a person deployed, the node confirms when it reads its own nonce back from the
  bus.
- For a release that a rollout deployed, the rollout's caller confirms. If no caller does so in time
  and the rollout no longer holds the node, reading the nonce back is enough.
- If the bus answered one new connection since the run, the release has not cut the node off. Then
  the node waits, without a limit.
- If no new connection had an answer for the whole confirmation time, and none has one now, the
  node is cut off. An agent that has just started looks for some seconds itself, because a network
  needs time after a reboot.
- If a rollback fails, the node tries it again after longer and longer pauses, up to a limit. Then a
  person has to look.
"""

from enum import StrEnum

from localpuppet.base.value import Value

# The number of rollback attempts, and the seconds after the first failure; each later pause is
# twice as long.
TRIES = 5
FIRST_PAUSE = 30.0
SETTLING = 20.0  # seconds for which an agent looks itself before it decides that the bus is silent


def pause_after(failed: int) -> float | None:
    """Return the seconds until the next rollback attempt; `None` for no further attempt.

    Args:
        failed: The number of failed attempts.
    """
    return None if failed >= TRIES else FIRST_PAUSE * 2 ** (failed - 1)


class BusContact(StrEnum):
    """What the last look at the bus had as an answer, the best first."""

    READ_BACK = "read back"  # a new connection succeeded, and the bus returned this node's nonce
    CONNECTED = "connected"  # an address of the bus answers
    NOTHING = "nothing"


class ConfirmationDecision(StrEnum):
    """What the node does next."""

    CONFIRMED = "confirmed"
    WAIT = "wait"
    UNHEARD = "unheard"  # wait, and report that the caller is silent
    UNSERVED = "unserved"  # wait, hold the node, and report that the bus does not serve
    CUT_OFF = "cut off"  # roll back


class ConfirmationState(Value):
    """The facts for a decision.

    Attributes:
        reach: The answer to the last look.
        waited: Seconds since the confirmation began.
        reached: Whether a new connection had an answer, now or earlier.
        looked: Seconds for which this agent has looked without an answer.
        by_rollout: Whether a rollout deployed the release.
        held: Whether that rollout holds the node.
    """

    reach: BusContact
    waited: float
    reached: bool
    looked: float
    by_rollout: bool
    held: bool


def decide(sight: ConfirmationState, *, within: float) -> ConfirmationDecision:
    """Return the verdict on a release that is not confirmed.

    Args:
        sight: The facts.
        within: Seconds within which the confirmation must come.
    """
    late = sight.waited >= within
    if sight.reach is BusContact.READ_BACK:
        if not sight.by_rollout or (late and not sight.held):
            return ConfirmationDecision.CONFIRMED
        return ConfirmationDecision.UNHEARD if late else ConfirmationDecision.WAIT
    if not late:
        return ConfirmationDecision.WAIT
    if sight.reached or sight.reach is not BusContact.NOTHING:
        return ConfirmationDecision.UNSERVED
    return (
        ConfirmationDecision.CUT_OFF
        if sight.looked >= min(SETTLING, within)
        else ConfirmationDecision.WAIT
    )
