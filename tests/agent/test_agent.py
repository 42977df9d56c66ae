"""What agents do, as real processes on each bus: nothing is broken here, see test_faults_*.py."""

from tests.agent.fleet import Fleet


def test_a_trigger_makes_another_node_run(any_fleet: Fleet) -> None:
    a, b = any_fleet.add("a", "b")
    any_fleet.start()
    (uuid,) = any_fleet.send(a, b)
    b.wait_log("history .*ended")
    events = any_fleet.settle()
    runs = [event for event in events if event["what"] == "started"]
    assert [(run["node"], run["causes"], run["cause"]) for run in runs] == [
        (b.name, (f"{a.name}/{uuid}",), f"trigger from {a.name}")
    ]
