"""Whether a deployed release is confirmed, waited for, or left.

Owns: what this node makes of what it hears of the bus. Refuses to know: how it is heard, time.

Rules:

- By hand, a node's own words that come back to it through the bus confirm the release. Those of a
  rollout are confirmed by its caller; where nobody of the rollout speaks and it holds the node no
  longer, its own words do for it.
- Where a new connection was answered in the place of the bus, once since the run, this node is not
  cut off by its release, whatever the bus does from then on: it waits, for ever if need be.
- Where none was, for as long as a confirmation may take, and nothing answers now, it is cut off. An
  agent that has just begun looks for a while itself: a network takes its time after a reboot.
- Where going back fails it is tried again some times, in longer and longer pauses: what was in its
  way may be over by then. After that a person has to look.
"""

from dataclasses import dataclass
from enum import StrEnum

# How often going back is tried, and the seconds after the first try that fails: then twice as many.
TRIES = 5
FIRST_PAUSE = 30.0
SETTLING = 20.0  # seconds that an agent looks itself before it believes that nothing answers


def pause_after(failed: int) -> float | None:
    """Return the seconds until going back is tried again; `None` for never.

    Args:
        failed: How many tries have failed.
    """
    return None if failed >= TRIES else FIRST_PAUSE * 2 ** (failed - 1)


class Reach(StrEnum):
    """What was heard of the bus, the best first."""

    READ_BACK = "read back"  # over a new connection, and our own words came back through the bus
    CONNECTED = "connected"  # something answers in its place
    NOTHING = "nothing"


class Verdict(StrEnum):
    """What is to be done."""

    CONFIRMED = "confirmed"
    WAIT = "wait"
    UNHEARD = "unheard"  # wait, and say that the caller is silent
    UNSERVED = "unserved"  # wait, hold the node, and say that the bus does not serve
    CUT_OFF = "cut off"  # go back


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is known now.

    Attributes:
        reach: What was heard of the bus just now.
        waited: Seconds since the count began.
        reached: Whether a new connection was answered, now or earlier.
        looked: Seconds for which this agent itself has looked and heard nothing.
        by_rollout: Whether a rollout deployed the release.
        held: Whether that rollout holds the node.
    """

    reach: Reach
    waited: float
    reached: bool
    looked: float
    by_rollout: bool
    held: bool


def decide(sight: Sight, *, within: float) -> Verdict:
    """Return what is to be done of a release that is not confirmed.

    Args:
        sight: What is known.
        within: Seconds within which a confirmation is to come.
    """
    late = sight.waited >= within
    if sight.reach is Reach.READ_BACK:
        if not sight.by_rollout or (late and not sight.held):
            return Verdict.CONFIRMED
        return Verdict.UNHEARD if late else Verdict.WAIT
    if not late:
        return Verdict.WAIT
    if sight.reached or sight.reach is not Reach.NOTHING:
        return Verdict.UNSERVED
    return Verdict.CUT_OFF if sight.looked >= min(SETTLING, within) else Verdict.WAIT
