"""The history checker on real agents with planted bugs (`planted_agent.py`): it must find each.

The fault tests of tests/scenarios show that it finds nothing without a bug.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.waiting import wait_until
from tests.simulation.planted_agent import BUGS


def kill_and_restart(fleet: Fleet, a: Member, b: Member) -> None:
    """Kill the agent during a run while another cause waits."""
    b.behave(gate=True)
    fleet.send(a, b)
    b.wait_log("history .*started")
    (uuid,) = fleet.send(a, b)
    fleet.accepted(b, uuid)
    b.kill()
    b.behave()
    b.open_gate()
    b.wait_log("history .*ended")
    b.start()
    b.wait_log("on sqlite")


def away(fleet: Fleet, a: Member, b: Member) -> None:
    b.stop()
    fleet.send(a, b)
    b.start()
    fleet.present(b)


def orphan(fleet: Fleet, a: Member, b: Member) -> None:
    """Kill the agent during a run that continues."""
    b.behave(gate=True)
    fleet.send(a, b)
    b.wait_log("history .*started")
    b.kill()
    b.start()
    wait_until(lambda: "on sqlite" in b.log, lambda: b.log)
    b.wait_log("history .*started|postponed the run", 2)
    b.behave()

    def all_ended() -> bool:
        # Opening the gate releases all runs that wait there: one or both.
        with suppress(OSError):
            os.close(os.open(b.root / "gate", os.O_WRONLY | os.O_NONBLOCK))
        return b.count("ended") == b.count("started")

    wait_until(all_ended, lambda: b.log)


def circle(fleet: Fleet, a: Member, b: Member) -> None:
    b.behave(notify=[a.name])
    fleet.send(a, b)
    b.wait_log("history .*ended")


SCENARIOS: dict[str, tuple[Callable[[Fleet, Member, Member], None], str]] = {
    "nothing_on_the_disk": (kill_and_restart, "was lost: no run, no drop"),
    "no_listing": (away, "was lost on the way"),
    "two_at_once": (orphan, "started while"),
    "no_end_of_loops": (circle, "a loop"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_checker_finds_a_planted_bug_of_the_agent(fleet: Fleet, bug: str) -> None:
    play, problem = SCENARIOS[bug]
    a, b = fleet.add("a", "b")
    b.command = [sys.executable, "-m", "tests.simulation.planted_agent", bug]
    fleet.start()
    play(fleet, a, b)
    b.stop()
    problems = fleet.problems()
    assert any(problem in line for line in problems), (problems, b.log)
