"""Limit how often a node reacts: in total per hour, and to one peer.

- At most `HOURLY` reactions follow within an hour.
- If a peer changes repeatedly, the node waits longer each time (`PAUSES`), so other peers get their
  share. An hour without a reaction to the peer resets its pause.
"""

from collections.abc import Sequence
from dataclasses import dataclass

HOUR = 3600.0
HOURLY = 6
# Seconds by which the clock may be set back before reactions are forgotten.
SKEW = 60.0
# Seconds until the next reaction to a peer, by the number of its reactions within the hour. The
# first two follow at once, for a value that is removed and added again; a limit of five leaves one
# for others.
PAUSES = (0.0, 0.0, 120.0, 600.0, 1800.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastReaction:
    """A reaction.

    Attributes:
        at: Its time in seconds since 1970, UTC.
        nodes: The peers that caused it.
        causes: The ids of its causes.
    """

    at: float
    nodes: tuple[str, ...]
    causes: tuple[str, ...]


def recent(made: Sequence[PastReaction], now: float) -> tuple[PastReaction, ...]:
    """Return the reactions that still count.

    Reactions with a time in the future do not count: a clock that was ahead would block the node.
    """
    return tuple(reaction for reaction in made if now - HOUR < reaction.at <= now + SKEW)


def node_waits_until(made: Sequence[PastReaction], now: float) -> float:
    """Return when the node may react again; `now` or earlier means at once."""
    counted = recent(made, now)
    return now if len(counted) < HOURLY else counted[-HOURLY].at + HOUR


def peer_waits_until(made: Sequence[PastReaction], peer: str, now: float) -> float:
    """Return when the node may react to a peer again; see `node_waits_until`."""
    times = [reaction.at for reaction in recent(made, now) if peer in reaction.nodes]
    return times[-1] + PAUSES[min(len(times), len(PAUSES) - 1)] if times else now
