"""Which listing of the bus does for a question: an earlier one of the run, or an agent's first."""

import asyncio

import pytest

from localpuppet.base.errors import StateError
from localpuppet.fleet.agent.entry_lender import (
    FIRST_LISTING,
    SHARED,
    FirstListing,
    is_shared,
)
from tests.doubles.ports import FakeClock

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("current", "begun", "shared"),
    [
        (NOW - 1, NOW - 2, True),
        (NOW - SHARED, NOW - SHARED, True),
        (NOW - SHARED - 1, NOW - SHARED - 2, False),  # a long compilation gets the new state
        (NOW - 2, NOW - 1, False),  # it was another run's
        (NOW + 1, NOW - 2, False),  # the clock was set back
        (None, NOW - 2, False),
    ],
)
def test_a_listing_is_shared_within_a_run(
    current: float | None, begun: float, *, shared: bool
) -> None:
    assert is_shared(current, begun=begun, now=NOW) is shared


class ViewOfTurns:
    """A view that is current from a given check on; each check takes a second of the clock."""

    def __init__(self, clock: FakeClock, *, current_from: float) -> None:
        self.clock = clock
        self.current_from = current_from
        self.checks = 0

    def is_current(self) -> bool:
        self.checks += 1
        self.clock.advance(1)
        return self.checks >= self.current_from


async def test_the_first_query_waits_until_the_bus_was_listed() -> None:
    clock = FakeClock()
    view = ViewOfTurns(clock, current_from=3)
    listing = FirstListing(view.is_current, clock, recheck=0)
    await listing.wait()
    assert view.checks == 3
    await listing.wait()
    assert view.checks == 3  # from then on, the age of the view decides


async def test_a_bus_that_is_away_delays_only_the_first_seconds_of_an_agent() -> None:
    clock = FakeClock()
    view = ViewOfTurns(clock, current_from=float("inf"))
    listing = FirstListing(view.is_current, clock, recheck=0)
    await asyncio.gather(listing.wait(), listing.wait())
    assert view.checks == FIRST_LISTING
    await listing.wait()
    assert view.checks == FIRST_LISTING


async def test_a_view_that_cannot_be_read_is_an_error() -> None:
    def refuse() -> bool:
        raise StateError("is damaged", where="view.sqlite")

    with pytest.raises(StateError, match="is damaged"):
        await FirstListing(refuse, FakeClock()).wait()
