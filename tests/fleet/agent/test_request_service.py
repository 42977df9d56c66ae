"""Which listing of the bus does for another question of a run."""

import pytest

from localpuppet.fleet.agent.request_service import SHARED, is_shared

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
