"""Until when nodes start, by clocks that are set forward and back."""

from datetime import UTC, datetime, timedelta

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.rollout.deciding import late
from localpuppet.rollout.events import LastRunsReported, NodeRun, RolloutEnding
from localpuppet.rollout.rollout_options import parse_until
from localpuppet.rollout.state import RolloutState
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.simulated import (
    BEGINNING,
    Notes,
    SimulatedNodes,
    began,
    carry_out,
    execution,
    node,
    words,
)

NOW = datetime(2026, 11, 22, 5, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-22T06:00+00:00", "2026-11-22T06:00"),
        ("2026-11-22T07:00:00+01:00", "2026-11-22T06:00"),
        ("2026-11-22T06:00Z", "2026-11-22T06:00"),
        ("2026-11-22 07:00 Europe/Berlin", "2026-11-22T06:00"),
        ("07:00 Europe/Berlin", "2026-11-22T06:00"),
        ("6:30 Europe/Berlin", "2026-11-23T05:30"),
        ("05:31 UTC", "2026-11-22T05:31"),
        ("23:00 America/New_York", "2026-11-23T04:00"),
        # Summer time, and the hour that clocks show twice: the first of them.
        ("2027-03-28 03:00 Europe/Berlin", "2027-03-28T01:00"),
        ("2027-10-31 02:30 Europe/Berlin", "2027-10-31T00:30"),
        ("2027-10-31 03:00 Europe/Berlin", "2027-10-31T02:00"),
    ],
)
def test_a_moment(text: str, moment: str) -> None:
    found = parse_until(text, now=NOW, where="--until")
    assert found == datetime.fromisoformat(moment).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2026-11-22T06:00", "has no time zone"),
        ("06:00", "is not a time|has no zone"),
        ("tomorrow", "is not a time"),
        ("25:00 UTC", "is not a time"),
        ("06:00 Europe/Atlantis", "the zone 'Europe/Atlantis' is unknown"),
        ("06:00 ../../etc/passwd", "is not a time"),
        ("06:00 /etc/passwd", "is unknown"),
        ("2026-11-22T05:30Z", "is in the past"),
        ("2027-03-28 02:30 Europe/Berlin", "2027-03-28 02:30 does not exist in"),
    ],
)
def test_an_invalid_time_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=f"--until: .*({message})"):
        parse_until(text, now=NOW, where="--until")


def state(until: datetime, *seconds: float) -> RolloutState:
    found = RolloutState(began(range(len(seconds) + 1), until=until))
    lasted = {node(number): (took, 1.0) for number, took in enumerate(seconds)}
    found.take(LastRunsReported(durations=lasted))
    return found


def test_the_longest_known_run_decides_whether_nodes_still_start() -> None:
    turns = [NodeRun(1, node(number)) for number in range(3)]
    found = state(NOW + timedelta(minutes=10), 300, 600)
    assert late(found, turns, NOW) == ""
    assert late(found, turns, NOW + timedelta(seconds=1)) == (
        "the last run of n01.example.com took 10m, which is longer than to 2026-11-22 05:40 UTC"
    )
    assert late(found, turns[:1], NOW + timedelta(seconds=1)) == ""
    assert late(found, turns[2:], NOW + timedelta(minutes=9)) == "", "nothing is known of it"
    assert late(found, turns[2:], NOW + timedelta(minutes=10)) == "it is 2026-11-22 05:40 UTC"
    assert late(found, [], NOW + timedelta(days=1)) == ""
    assert late(RolloutState(began([1])), turns, NOW) == ""


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        # 01:00 in Berlin; three hours later clocks there show 03:00.
        ("2026-10-25 03:00 Europe/Berlin", 3),
        ("2026-10-25 02:58 Europe/Berlin", 1),
        ("2026-10-25 01:30 Europe/Berlin", 0),
    ],
)
def test_until_counts_correctly_in_the_night_in_which_clocks_are_set_back(
    text: str, runs: int
) -> None:
    """Runs of one hour, one after the other; the rest is not reached, and resume continues."""

    async def work() -> None:
        hour = 3600.0
        until = parse_until(text, now=BEGINNING, where="")
        nodes = SimulatedNodes({node(number): hour for number in range(4)})
        nodes.lasted = {node(number): (hour - 60, 1.0) for number in range(4)}
        notes = Notes()
        first = began(range(4), window=1, until=until, timeout=2 * hour)
        found = await carry_out(first, nodes, notes)
        assert found.over is not None
        assert found.over.ending is RolloutEnding.STOPPED
        assert words(found) == ["succeeded"] * runs + ["not reached"] * (4 - runs)
        assert nodes.held == set()
        again = execution(RolloutState.of(notes.events), nodes, notes)
        assert (await again.run(resume=True)).ending is RolloutEnding.DONE
        assert words(again.state) == ["succeeded"] * 4

    run_simulated(work())
