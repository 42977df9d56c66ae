"""The checks of a node, with a simulated probe in simulated time."""

import asyncio

from localpuppet.rollout.checking import AT_ONCE, PAUSE, TRIES, CheckRunner
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.simulated import SimulatedProbe, node


def test_the_checks_of_a_node_run_together_and_a_failed_check_is_named() -> None:
    async def work() -> None:
        bad = ("/bin/probe", "secret")
        probe = SimulatedProbe(bad={bad, "http://n01.example.com/2"})
        checks = ("http://%{node}/1", bad, "http://%{node}/2", "http://%{node}/1")
        problem = await CheckRunner(probe).problem(node(1), checks)
        assert problem == f"check /bin/probe: answered 503, {TRIES} times (and 1 more)"
        assert asyncio.get_running_loop().time() == TRIES * 0.5 + (TRIES - 1) * PAUSE
        tried = [check for check, _ in probe.tried]
        assert tried.count("http://n01.example.com/1") == 1, "once, though the list has it twice"
        assert tried.count(bad) == TRIES

    run_simulated(work())


def test_a_check_that_passes_later_passes() -> None:
    async def work() -> None:
        probe = SimulatedProbe(up={"http://n01.example.com/": 5.0})
        assert await CheckRunner(probe).problem(node(1), ["http://%{node}/"]) == ""
        assert len(probe.tried) == 3

    run_simulated(work())


def test_the_number_of_concurrent_checks_is_limited_over_all_nodes() -> None:
    async def work() -> None:
        probe = SimulatedProbe()
        checking = CheckRunner(probe)
        checks = [f"http://%{{node}}/{number}" for number in range(AT_ONCE)]
        found = await asyncio.gather(*(checking.problem(node(one), checks) for one in range(3)))
        assert found == ["", "", ""]
        assert probe.most == AT_ONCE

    run_simulated(work())
