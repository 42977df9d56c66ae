"""What a node makes of what it hears of the bus while a release waits for its confirmation."""

from dataclasses import replace

import pytest

from localpuppet.fleet.agent.confirming.deciding import SETTLING, Reach, Sight, Verdict, decide

WITHIN = 90.0
EARLY = Sight(
    reach=Reach.CONNECTED, waited=10.0, reached=True, looked=0.0, by_rollout=False, held=False
)
LATE = replace(EARLY, waited=1000.0)
ROLLED = replace(LATE, by_rollout=True, held=True)
NOTHING = replace(LATE, reach=Reach.NOTHING, reached=False, looked=SETTLING)


@pytest.mark.parametrize(
    ("sight", "expected"),
    [
        (replace(EARLY, reach=Reach.READ_BACK), Verdict.CONFIRMED),
        (replace(LATE, reach=Reach.READ_BACK), Verdict.CONFIRMED),
        # A rollout's caller confirms; where the rollout is gone, the node's own words do.
        (replace(EARLY, reach=Reach.READ_BACK, by_rollout=True), Verdict.WAIT),
        (replace(ROLLED, reach=Reach.READ_BACK), Verdict.UNHEARD),
        (replace(LATE, reach=Reach.READ_BACK, by_rollout=True), Verdict.CONFIRMED),
        # Servers that connect and do not answer roll nobody back, however long that takes.
        (EARLY, Verdict.WAIT),
        (LATE, Verdict.UNSERVED),
        (ROLLED, Verdict.UNSERVED),
        (replace(LATE, waited=1e9), Verdict.UNSERVED),
        # Nothing answers at all.
        (replace(EARLY, reach=Reach.NOTHING, reached=False, looked=10.0), Verdict.WAIT),
        (NOTHING, Verdict.CUT_OFF),
        (replace(NOTHING, by_rollout=True, held=True), Verdict.CUT_OFF),
        # Something answered a new connection since the run: it was not the release.
        (replace(NOTHING, reached=True), Verdict.UNSERVED),
        # An old connection goes on, and no new one was answered.
        (replace(NOTHING, reach=Reach.CONNECTED), Verdict.UNSERVED),
        (replace(NOTHING, waited=WITHIN - 1), Verdict.WAIT),
        # The agent has just begun, or the machine.
        (replace(NOTHING, looked=SETTLING - 1), Verdict.WAIT),
    ],
)
def test_what_follows(sight: Sight, expected: Verdict) -> None:
    assert decide(sight, within=WITHIN) is expected


def test_a_short_time_needs_no_longer_look() -> None:
    sight = replace(NOTHING, waited=5.0, looked=5.0)
    assert decide(sight, within=5.0) is Verdict.CUT_OFF
