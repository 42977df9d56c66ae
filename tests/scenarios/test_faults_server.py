"""Servers that are killed, lose their quorum, or are locked, under agents that work."""

import sqlite3

from tests.rigs.buses import SHORT
from tests.rigs.fleet import Fleet
from tests.rigs.waiting import PATIENCE


def test_every_agent_receives_again_after_a_kill_of_the_server(served_fleet: Fleet) -> None:
    fleet = served_fleet
    a, b, c, away = fleet.add("a", "b", "c", "away")
    fleet.start()
    away.stop()
    # Whatever the server acknowledged arrives, also at an agent that starts after its crash.
    before = fleet.send(a, b, c, away)
    fleet.bus.server.kill()
    for member in (a, b, c):
        member.wait_log("the bus is unreachable, periodic runs continue")
    assert a.run("nodes").code == 69
    assert a.run("trigger", b.name).code == 69
    fleet.bus.server.start()
    for member in (a, b, c):
        member.wait_log("the bus is reachable again")
    after = fleet.send(c, a, b)
    for member in (a, b):
        fleet.accepted(member, after[0])
    away.start()
    fleet.accepted(away, before[0])
    fleet.settle()


def test_a_server_that_is_killed_again_and_again(served_fleet: Fleet) -> None:
    fleet = served_fleet
    a, b = fleet.add("a", "b")
    fleet.start()
    for times in range(1, 4):
        (uuid,) = fleet.send(a, b)
        fleet.bus.server.kill()
        b.wait_log("the bus is unreachable", times)
        fleet.bus.server.start()
        b.wait_log("the bus is reachable again", times)
        fleet.accepted(b, uuid)
    fleet.settle()


def test_runs_that_send_during_an_outage_get_an_error(served_fleet: Fleet) -> None:
    fleet = served_fleet
    a, b, c = fleet.add("a", "b", "c")
    b.behave(gate=True, notify=[c.name])
    fleet.start()
    fleet.send(a, b)
    b.wait_log("history .*started")
    fleet.bus.server.kill()
    b.wait_log("the bus is unreachable")
    b.open_gate()
    b.wait_log("history .*unsent.*ended|history .*unsent")
    b.wait_log("run .*ended: exit code 0")
    fleet.bus.server.start()
    b.wait_log("the bus is reachable again")
    assert c.count("accepted") == 0
    fleet.settle()


def test_a_cluster_loses_its_quorum_and_recovers_it(quorum_fleet: Fleet) -> None:
    fleet = quorum_fleet
    a, b, c = fleet.add("a", "b", "c")
    fleet.start()
    c.stop()
    (before,) = fleet.send(a, b, c)
    one, *others = fleet.bus.servers
    one.kill()  # two of three are enough
    (with_two,) = fleet.send(b, a)
    fleet.accepted(a, with_two)
    others[0].kill()
    a.wait_log("the bus is unreachable")
    b.wait_log("the bus is unreachable")
    # No quorum is an error, never an empty fleet.
    for words in (["nodes"], ["trigger", b.name], ["lease", "x", "--", "true"]):
        done = a.run(*words)
        assert (done.code, done.out) == (69, ""), words
    one.start(wait=False)
    others[0].start(wait=False)
    for server in (one, others[0]):
        server.wait_healthy()
    c.start()
    fleet.accepted(c, before)
    (again,) = fleet.send(c, a, b)
    for member in (a, b):
        fleet.accepted(member, again)
    fleet.settle()


def test_a_file_that_another_process_keeps_locked(fleet: Fleet) -> None:
    fleet.bus.timeout = SHORT
    a, b = fleet.add("a", "b")
    fleet.start()
    assert fleet.bus.where is not None
    other = sqlite3.connect(fleet.bus.where, timeout=PATIENCE, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    b.behave(notify=[a.name])
    assert b.run("trigger", a.name).code == 69
    other.execute("ROLLBACK")
    other.close()
    (uuid,) = fleet.send(a, b)
    fleet.accepted(b, uuid)
    fleet.settle()


def test_a_file_that_is_removed(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b")
    fleet.start()
    assert fleet.bus.where is not None
    for file in fleet.bus.where.parent.iterdir():
        file.unlink()
    (uuid,) = fleet.send(a, b)
    fleet.accepted(b, uuid)
    fleet.settle()
