"""Servers that are killed, lose their quorum, are cut off or flooded, under agents that work.

An agent in a separate network receives nothing from the server, and no error either. That needs
root.
"""

import os
import secrets
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from localpuppet.fleet.agent.service_log import MOST, WINDOW
from tests.rigs.buses import SHORT, etcd
from tests.rigs.fleet import Fleet
from tests.rigs.fleet_fixtures import fleet_on
from tests.rigs.preloaded import OWN_PYTHON
from tests.rigs.waiting import PATIENCE, wait_until
from tests.simulation.history import check_arrivals

# scripts/faults sets the number; the short form shows the same in a tenth of the time.
STORM = int(os.environ.get("FAULTS_STORM", "1000"))
MEBIBYTE = 1024 * 1024
# How many storms a test makes at most: of one that a busy agent reads late, the bus keeps little.
STORMS = 20


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=PATIENCE)


@dataclass
class Island:
    """A network namespace."""

    name: str
    card: str  # the card on the machine's side
    address: str  # where servers listen for it

    @property
    def inside(self) -> list[str]:
        """The command prefix that starts a program in it."""
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Lose everything between it and the rest, in both directions, silently."""
        ip("route", "replace", "blackhole", f"{self.address[:-1]}2/32")

    def mend(self) -> None:
        ip("route", "del", "blackhole", f"{self.address[:-1]}2/32")


@contextmanager
def island() -> Iterator[Island]:
    # A new name each time: the kernel takes its time with a card whose network is gone.
    name = f"lp{secrets.token_hex(4)}"
    made = Island(name, name, f"10.213.{secrets.randbelow(250)}.1")
    ip("netns", "add", made.name)
    try:
        ip("link", "add", made.card, "type", "veth", "peer", "name", "eth0", "netns", made.name)
        ip("address", "add", f"{made.address}/30", "dev", made.card)
        ip("link", "set", made.card, "up")
        inside = ("-n", made.name)
        ip(*inside, "address", "add", f"{made.address[:-1]}2/30", "dev", "eth0")
        ip(*inside, "link", "set", "eth0", "up")
        ip(*inside, "link", "set", "lo", "up")
        yield made
    finally:
        ip("netns", "del", made.name)


def test_every_agent_receives_again_after_a_kill_of_the_server(served_fleet: Fleet) -> None:
    """What the server acknowledged arrives; a run that sends meanwhile gets an error."""
    fleet = served_fleet
    a, b, c, away = fleet.add("a", "b", "c", "away")
    b.behave(gate=True, notify=[c.name])
    fleet.start()
    away.stop()
    (before,) = fleet.send(a, b, away)
    b.wait_log("history .*started")
    fleet.bus.server.kill()
    for member in (a, b, c):
        member.wait_log("the bus is unreachable, periodic runs continue")
    a.run("nodes", code=69)
    a.run("trigger", b.name, code=69)
    b.behave()
    b.open_gate()
    b.wait_log("history .*unsent")
    b.wait_log("run .*ended: exit code 0")
    fleet.bus.server.start()
    for member in (a, b, c):
        member.wait_log("the bus is reachable again")
    (after,) = fleet.send(c, a, b)
    for member in (a, b):
        fleet.accepted(member, after)
    away.start()  # it starts after the crash of the server
    fleet.accepted(away, before)
    fleet.settle()
    assert c.count("accepted") == 0


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


def test_a_file_that_is_removed(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b")
    fleet.start()
    assert fleet.bus.where is not None
    for file in fleet.bus.where.parent.iterdir():
        file.unlink()
    (uuid,) = fleet.send(a, b)
    fleet.accepted(b, uuid)
    fleet.settle()


def test_a_partition(tmp_path: Path, puppet_probe: str) -> None:
    """What was sent meanwhile arrives once it is over, or is too late; then all is as before."""
    with island() as far:
        for bus in etcd(tmp_path, host=far.address):
            bus.timeout = SHORT
            for fleet in fleet_on(tmp_path, bus, puppet_probe):
                cut_off_and_back(fleet, far)


def cut_off_and_back(fleet: Fleet, far: Island) -> None:
    a, b, c = fleet.add("a", "b", "c")
    b.start(before=far.inside)
    fleet.start()
    (before,) = fleet.send(a, b)
    fleet.accepted(b, before)
    far.cut()
    (late,) = fleet.send(c, b, ttl=1, late=True)
    (meanwhile,) = fleet.send(a, b, ttl=180)
    (among,) = fleet.send(c, a)
    fleet.accepted(a, among)  # the others keep working
    b.wait_log("the bus is unreachable, periodic runs continue")
    fleet.until_expired(c, b)
    far.mend()
    b.wait_log("the bus is reachable again")
    fleet.accepted(b, meanwhile)
    (after,) = fleet.send(c, b)
    fleet.accepted(b, after)
    events = fleet.settle()
    served = {cause for event in events if event["what"] == "started" for cause in event["causes"]}
    assert (f"{a.name}/{meanwhile}" in served, f"{c.name}/{late}" in served) == (True, False)
    assert b.count("accepted") == 3


def may_log(begun: float) -> float:
    """Return how many lines of a kind an agent may have logged since it started."""
    return MOST * (1 + (time.monotonic() - begun) / WINDOW)


def test_a_storm_during_a_slow_run(served_fleet: Fleet) -> None:
    """At most two runs, bounded memory, a readable log."""
    fleet = served_fleet
    fleet.bus.timeout = PATIENCE
    senders = fleet.add("a", "c", "d", "e")
    (b,) = fleet.add("b")
    b.behave(gate=True)
    # Without --debug: the log is as an operator has it.
    begun = time.monotonic()
    b.start(before=OWN_PYTHON, debug=False)
    fleet.present(b)
    fleet.send(senders[0], b)
    b.wait_log("history .*started")
    before = b.memory()
    inbox = b.root / "var" / "agent" / "inbox.sqlite"

    def ask(query: str) -> list[str]:
        with closing(sqlite3.connect(f"file:{inbox}?mode=ro", uri=True)) as connection:
            return [row[0] for row in connection.execute(query)]

    def lost() -> list[str]:
        """Return what was sent, and neither accepted nor followed by what was: by the disk."""
        seen = ask("SELECT id FROM seen")
        accepted = [{"at": 0, "node": b.name, "what": "accepted", "id": id_} for id_ in seen]
        sent = [event for event in fleet.history() if event["what"] == "sent"]
        return check_arrivals([*accepted, *sent])

    owed = storms = 0
    while owed <= STORM // 2 and storms < STORMS:
        storms += 1
        for sender in senders:
            fleet.send(sender, b, count=STORM // len(senders) - 1)
            fleet.send(sender, b)  # alone: the order of those above is the bus's secret
        wait_until(lambda: not lost(), lambda: "\n".join([*lost(), b.log]))
        owed = len(ask("SELECT id FROM causes"))
    after, most = b.memory(), b.memory("VmHWM")
    b.behave()
    b.open_gate()
    wait_until(lambda: not ask("SELECT id FROM causes"), lambda: b.log)
    sys.stdout.write(
        f"{fleet.bus.engine}: {storms * STORM} triggers, {owed} causes,"
        f" {(after - before) / MEBIBYTE:.1f} MiB more memory,"
        f" {(most - before) / MEBIBYTE:.1f} MiB at most\n"
    )
    assert b.stop() == 0
    assert b.count("started") == 2
    assert most - before <= 64 * MEBIBYTE
    lines = b.log.splitlines()
    assert len(lines) < 200 + may_log(begun), "rate-limited"
    assert f"running for {owed - 1} causes: trigger from" in b.log
    assert owed > STORM // 2, "a storm, and not what the bus had left of it"
