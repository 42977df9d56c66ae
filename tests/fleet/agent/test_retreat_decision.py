"""What a node decides from the state of the bus while a release waits for its confirmation."""

from dataclasses import replace

import pytest

from localpuppet.fleet.agent.retreat import (
    SETTLING,
    BusContact,
    ConfirmationDecision,
    ConfirmationState,
    decide,
)

WITHIN = 90.0
EARLY = ConfirmationState(
    reach=BusContact.CONNECTED, waited=10.0, reached=True, looked=0.0, by_rollout=False, held=False
)
LATE = replace(EARLY, waited=1000.0)
ROLLED = replace(LATE, by_rollout=True, held=True)
NOTHING = replace(LATE, reach=BusContact.NOTHING, reached=False, looked=SETTLING)


@pytest.mark.parametrize(
    ("sight", "expected"),
    [
        (replace(EARLY, reach=BusContact.READ_BACK), ConfirmationDecision.CONFIRMED),
        (replace(LATE, reach=BusContact.READ_BACK), ConfirmationDecision.CONFIRMED),
        # The rollout's caller confirms; if the rollout is gone, the node's own message does.
        (replace(EARLY, reach=BusContact.READ_BACK, by_rollout=True), ConfirmationDecision.WAIT),
        (replace(ROLLED, reach=BusContact.READ_BACK), ConfirmationDecision.UNHEARD),
        (
            replace(LATE, reach=BusContact.READ_BACK, by_rollout=True),
            ConfirmationDecision.CONFIRMED,
        ),
        # A server that connects and does not answer never causes a rollback.
        (EARLY, ConfirmationDecision.WAIT),
        (LATE, ConfirmationDecision.UNSERVED),
        (ROLLED, ConfirmationDecision.UNSERVED),
        (replace(LATE, waited=1e9), ConfirmationDecision.UNSERVED),
        # Nothing answers at all.
        (
            replace(EARLY, reach=BusContact.NOTHING, reached=False, looked=10.0),
            ConfirmationDecision.WAIT,
        ),
        (NOTHING, ConfirmationDecision.CUT_OFF),
        (replace(NOTHING, by_rollout=True, held=True), ConfirmationDecision.CUT_OFF),
        # A server answered a new connection after the run: the release did not cut the node off.
        (replace(NOTHING, reached=True), ConfirmationDecision.UNSERVED),
        # An old connection still works, and no server answered a new one.
        (replace(NOTHING, reach=BusContact.CONNECTED), ConfirmationDecision.UNSERVED),
        (replace(NOTHING, waited=WITHIN - 1), ConfirmationDecision.WAIT),
        # The agent or the machine has just started.
        (replace(NOTHING, looked=SETTLING - 1), ConfirmationDecision.WAIT),
    ],
)
def test_what_follows(sight: ConfirmationState, expected: ConfirmationDecision) -> None:
    assert decide(sight, within=WITHIN) is expected


def test_a_short_time_needs_no_longer_look() -> None:
    sight = replace(NOTHING, waited=5.0, looked=5.0)
    assert decide(sight, within=5.0) is ConfirmationDecision.CUT_OFF
