"""Pauses between attempts."""

import pytest

from localpuppet.fleet.bus.outage import FIRST, LONGEST, Backoff


@pytest.mark.parametrize(("chance", "part"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_pauses_double_up_to_the_longest_and_can_be_reset(chance: float, part: float) -> None:
    backoff = Backoff(lambda: chance)
    pauses = [backoff.pause() for _ in range(5)]
    assert pauses == pytest.approx([part * s for s in (FIRST, 0.2, 0.4, LONGEST, LONGEST)])
    backoff.reset()
    assert backoff.pause() == pytest.approx(part * FIRST)


def test_two_clients_have_different_pauses() -> None:
    one, other = Backoff(), Backoff()
    assert [one.pause() for _ in range(8)] != [other.pause() for _ in range(8)]
