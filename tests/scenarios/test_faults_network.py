"""An agent in a separate network, which is cut off: for less and for more than the ttl.

A network namespace, with a pair of virtual cards to the rest of the machine: server and agent
receive nothing from each other, and no error either. Needs root.
"""

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rigs.buses import SERVED, SHORT
from tests.rigs.fleet import Fleet
from tests.rigs.fleet_fixtures import fleet_on
from tests.rigs.waiting import PATIENCE


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=PATIENCE)


@dataclass
class Island:
    """A network namespace.

    Attributes:
        name: Its name.
        card: The card on the machine's side.
        address: Where servers listen for it.
    """

    name: str
    card: str
    address: str

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


@pytest.fixture(params=["etcd", "nats"])
def apart(
    request: pytest.FixtureRequest, tmp_path: Path, puppet_probe: str
) -> Iterator[tuple[Fleet, Island]]:
    """A fleet, and a network for one of its agents."""
    with island() as made:
        for bus in SERVED[request.param](tmp_path, host=made.address):
            bus.timeout = SHORT
            for fleet in fleet_on(tmp_path, bus, puppet_probe):
                yield fleet, made


@pytest.mark.parametrize("ttl", [1, 180])
def test_a_partition(apart: tuple[Fleet, Island], ttl: int) -> None:
    """What was sent meanwhile arrives once it is over, or is too late; then all is as before."""
    fleet, far = apart
    a, b, c = fleet.add("a", "b", "c")
    b.start(before=far.inside)
    fleet.start()
    (before,) = fleet.send(a, b)
    fleet.accepted(b, before)
    far.cut()
    (meanwhile,) = fleet.send(c, b, ttl=ttl, late=ttl == 1)
    (among,) = fleet.send(c, a)
    fleet.accepted(a, among)  # the others keep working
    b.wait_log("the bus is unreachable, periodic runs continue")
    if ttl == 1:
        fleet.until_expired(c, b)
    far.mend()
    b.wait_log("the bus is reachable again")
    if ttl != 1:
        fleet.accepted(b, meanwhile)
    (after,) = fleet.send(a, b)
    fleet.accepted(b, after)
    events = fleet.settle()
    served = {cause for event in events if event["what"] == "started" for cause in event["causes"]}
    assert ((c.name + "/" + meanwhile) in served) or ttl == 1
    assert b.count("accepted") == (2 if ttl == 1 else 3)
