"""How often a node reacts: in an hour, and to one peer.

Owns: the numbers. Refuses to know: answers, and why there is a reaction.

- At most `HOURLY` reactions in an hour, to whatever they are.
- A peer that changes again and again is waited for longer each time (`PAUSES`), so that it leaves
  room for others. After an hour without a reaction to it, it begins anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass

HOUR = 3600.0
HOURLY = 6
# Seconds by which a clock is set back without anything being forgotten.
SKEW = 60.0
# Seconds to the next reaction to a peer, by how many there were within the hour: something may be
# taken out and put back at once, and five in an hour leave one for others.
PAUSES = (0.0, 0.0, 120.0, 600.0, 1800.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A reaction that was made.

    Attributes:
        at: When: seconds since 1970, UTC.
        nodes: The peers that it was made for.
        causes: The ids of its causes.
    """

    at: float
    nodes: tuple[str, ...]
    causes: tuple[str, ...]


def recent(made: Sequence[Made], now: float) -> tuple[Made, ...]:
    """Return the reactions that still count.

    Those that a clock made that was far ahead do not: it could keep the node waiting for ever.
    """
    return tuple(one for one in made if now - HOUR < one.at <= now + SKEW)


def node_waits_until(made: Sequence[Made], now: float) -> float:
    """Return when the node may react again; not later than `now` where it may at once."""
    counted = recent(made, now)
    return now if len(counted) < HOURLY else counted[-HOURLY].at + HOUR


def peer_waits_until(made: Sequence[Made], peer: str, now: float) -> float:
    """Return when the node may react to a peer again; see `node_waits_until`."""
    times = [one.at for one in recent(made, now) if peer in one.nodes]
    return times[-1] + PAUSES[min(len(times), len(PAUSES) - 1)] if times else now
