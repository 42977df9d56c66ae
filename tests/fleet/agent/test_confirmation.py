"""The stored state of a confirmation, its waiting time, and what a node decides from them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.converter import from_record, to_record
from localpuppet.base.formats.times import show_time
from localpuppet.fleet.agent.confirmation import (
    SETTLING,
    BusContact,
    Confirmation,
    ConfirmationDecision,
    ConfirmationMemory,
    ConfirmationState,
    Instant,
    Stage,
    decide,
)

BEGAN = datetime(2026, 11, 22, 12, tzinfo=UTC)


def instant(*, boot: str = "a", up: float = 1000.0, passed: float = 0.0) -> Instant:
    """Return a moment: seconds since the boot, and by the time of day since the count began."""
    return Instant(boot=boot, monotonic=up, at=show_time(BEGAN + timedelta(seconds=passed)))


ASSIGNED: dict[str, Any] = {
    "serial": 3,
    "release": "app/tags/r2",
    "by": "choria=alice",
    "rollout": "",
}
FOUND = Confirmation(**ASSIGNED, run="R", nonce="n", within=90.0, since=instant())


@pytest.mark.parametrize("passed", [-86400.0, 0.0, 60.0, 86400.0])
def test_a_change_of_the_wall_clock_does_not_count_within_a_boot(passed: float) -> None:
    now = instant(up=1060.0, passed=passed)
    assert (FOUND.carried(now), FOUND.waited(now)) == (FOUND, 60.0)


@pytest.mark.parametrize(
    ("passed", "waited"),
    [
        (60.0, 60.0),
        (-86400.0, 0.0),  # a clock without a battery
        (86400.0, 90.0),  # the machine was off for a day
    ],
)
def test_over_a_reboot_the_clock_counts_within_bounds(passed: float, waited: float) -> None:
    carried = FOUND.carried(now := instant(boot="b", up=7.0, passed=passed))
    assert carried.waited(now) == waited
    later = instant(boot="b", up=12.0, passed=-1e6)
    assert carried.carried(later) == carried
    assert carried.waited(later) == waited + 5.0


@pytest.mark.parametrize("stage", list(Stage))
def test_it_outlives_a_restart(tmp_path: Path, stage: Stage) -> None:
    memory = ConfirmationMemory(tmp_path / "state")
    assert memory.read() is None
    memory.write(found := replace(FOUND, stage=stage, reason="because", newest="Q", reached=True))
    assert ConfirmationMemory(tmp_path / "state").read() == found


@pytest.mark.parametrize(
    "text",
    ["{", "{}", '{"schema": 2}', '{"schema": 1, "since": 3}', '{"schema": 1, "since": {"at": ""}}'],
)
def test_the_error_for_a_damaged_file_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "confirmation.json").write_text(text)
    with pytest.raises(StateError, match=r"confirmation\.json.*move it away"):
        ConfirmationMemory(tmp_path).read()


@pytest.mark.parametrize(
    ("key", "value"), [("within", True), ("serial", "3"), ("stage", "gone"), ("since", {"at": 1})]
)
def test_a_field_of_another_type_is_damage(key: str, value: object) -> None:
    with pytest.raises(InvalidInputError):
        from_record(Confirmation, {**to_record(FOUND), key: value})


def test_the_public_form_has_no_nonce() -> None:
    assert "nonce" not in FOUND.to_public()
    assert str(replace(FOUND, reason="w")) == "app/tags/r2: pending (w)"


@pytest.mark.parametrize("rolled_back", [True, False])
@pytest.mark.parametrize("stage", list(Stage))
def test_status_shows_open_and_failed_confirmations(stage: Stage, *, rolled_back: bool) -> None:
    open_ones = (Stage.PENDING, Stage.ROLLING_BACK, Stage.ROLLBACK_FAILED)
    expected = stage in open_ones or (
        rolled_back and stage in (Stage.ROLLED_BACK, Stage.SUPERSEDED)
    )
    assert replace(FOUND, stage=stage).concerns(rolled_back=rolled_back) == expected


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
        (replace(LATE, reach=BusContact.READ_BACK, by_rollout=True),
         ConfirmationDecision.CONFIRMED),
        # A server that connects and does not answer never causes a rollback.
        (EARLY, ConfirmationDecision.WAIT),
        (LATE, ConfirmationDecision.UNSERVED),
        (ROLLED, ConfirmationDecision.UNSERVED),
        (replace(LATE, waited=1e9), ConfirmationDecision.UNSERVED),
        # Nothing answers at all.
        (replace(EARLY, reach=BusContact.NOTHING, reached=False, looked=10.0),
         ConfirmationDecision.WAIT),
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
)  # fmt: skip
def test_what_follows(sight: ConfirmationState, expected: ConfirmationDecision) -> None:
    assert decide(sight, within=WITHIN) is expected
    brief = replace(NOTHING, waited=5.0, looked=5.0)
    assert decide(brief, within=5.0) is ConfirmationDecision.CUT_OFF, "it needs no longer look"
