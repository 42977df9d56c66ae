"""What a reaction takes: a fact changes on one node, and Puppet starts on the node that asked.

    reaction  from the write of a node's entry until Puppet's process starts on another, whose last
              good run asked for that fact: an agent with a watch, the real Puppet behind it. The
              debounce is part of it, and said beside it

A node reacts six times an hour and less often to one peer, so each round is another peer's change.
Bars are printed with what was reached. Needs root, Puppet, and the engine's server.

    benchmarks/reactions.py [--engine sqlite|nats-new|nats|etcd]
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the servers of the tests

from engines import Store, store
from real_agents import Node, wait_until

from localpuppet.base.formats.names import EnvironmentName, NodeName, RunId, SignerName
from localpuppet.fleet.bus.layout import INVENTORY
from localpuppet.fleet.edges.reactions import HOURLY
from localpuppet.fleet.edges.reactor import DEBOUNCE
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.trust.signing import MessageKind
from tests.doubles.identities import Person, person

SITE = "notice(servers_with_role('web').map |$one| { $one['ipaddress'] }.join(' '))"
# Seconds until nothing is looked at any more on account of the run before.
SETTLE = DEBOUNCE + 1.0
ENGINES = ("sqlite", "nats-new", "nats", "etcd")
BAR = 150.0  # milliseconds, without the debounce


def said(name: str, address: str) -> InventoryEntry:
    """Return what a web server says of itself."""
    return InventoryEntry(
        node=NodeName(name),
        at=time.time(),
        run=RunId("20260101T000000.000000Z-00aa"),
        release="app/tags/r1",
        environment=EnvironmentName("production"),
        facts={"fqdn": name, "networking": {"ip": address, "fqdn": name}},
        roles=("web",),
        paths=((),),
    ).digested()


async def write(node: Node, peer: Person, address: str) -> int:
    """Put an entry on the bus, as its node's agent does; return when, in nanoseconds."""
    token = peer.signer.sign(said(peer.name, address).to_payload(), MessageKind.INVENTORY)
    async with node.parts.connected() as kv:
        begun = time.time_ns()
        await kv.put(INVENTORY + peer.name, token)
        return begun


def times(at: Store, directory: Path) -> list[float]:
    """Return milliseconds of each round; the first warms up."""
    peers = [person(f"web{number:02}.example.com") for number in range(HOURLY)]
    node = Node(directory, "lb01.example.com", at.settings, site=SITE)
    for peer in peers:
        node.parts.identity.trusted.pin(SignerName(peer.name), peer.key.public_key())
        asyncio.run(write(node, peer, "10.0.0.1"))
    node.start()
    found = []
    try:
        time.sleep(SETTLE)
        node.apply()
        for number, peer in enumerate(peers, 2):
            time.sleep(SETTLE)
            count = len(node.starts.read_text().split())
            begun = asyncio.run(write(node, peer, f"10.0.0.{number}"))
            wait_until(
                lambda: len(node.starts.read_text().split()) > count,  # noqa: B023
                "Puppet did not start",
            )
            found.append((int(node.starts.read_text().split()[count]) - begun) / 1e6)
            node.rest()
    finally:
        node.stop()
    return found[1:]


def main() -> None:
    """Print the table and the bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--engine", default="nats-new", choices=ENGINES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, store(options.engine, Path(directory)) as at:
        found = times(at, Path(directory))
    median = statistics.median(found)
    print("| from a changed fact to Puppet's start | median | least | most |\n|---|---|---|---|")
    print(f"| {options.engine} | {median:.0f} ms | {min(found):.0f} ms | {max(found):.0f} ms |")
    more = median - DEBOUNCE * 1000
    word = "reached" if more <= BAR else "MISSED"
    print(f"\n{word}: {more:.0f} ms beside the debounce of {DEBOUNCE:g} s (bar {BAR:.0f} ms)")


if __name__ == "__main__":
    main()
