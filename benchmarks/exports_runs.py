"""A run that collects the exports of many nodes, compared with a written catalog and PuppetDB.

    collects   `localpuppet apply` of a class that collects, with an agent beside it
    written    `localpuppet apply` of a class that declares the same resources
    PuppetDB   bare `puppet apply` of the class that collects, with PuppetDB's terminus

Each round runs them in turn. The output has medians of wall and CPU seconds, with those of the
agent and without those of PuppetDB and PostgreSQL, and the bars. PuppetDB needs the packages that
`scripts/puppetdb` unpacks; `--terminus` names the directory of its terminus.

    benchmarks/exports_runs.py [--nodes 200] [--rounds 3] [--terminus DIRECTORY]
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the rigs of the tests

from exports import EACH, resource
from fleets import usage
from overhead import Took, timed
from puppetdb_queries import catalog_of
from puppetdb_sides import Side, printed_by, puppetdb_beside

from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.fleet.exports.held import FILE, HeldExports, exports_writer
from localpuppet.fleet.exports.resource import ExportedResource, pack
from localpuppet.fleet.inventory.chunks import ChunkOutbox
from localpuppet.fleet.inventory.entry import ExportsSummary
from localpuppet.fleet.inventory.entry_publisher import PublisherIdentity, publish
from localpuppet.fleet.trust.key_files import TrustedKeys
from tests.doubles.identities import person, verifier
from tests.fleet.inventory.entries import entry
from tests.rigs.buses import sqlite
from tests.rigs.fleet import Fleet
from tests.rigs.fleet_fixtures import fleet_on
from tests.rigs.member import Member
from tests.rigs.node import COMMAND, REPOSITORY, probe_puppet

TAG = "shop"
MODULE = "modules/haproxy/trunk/haproxy/manifests"
DEFINED = """define haproxy::balancermember(
  $listening_service, $ports, $server_names = undef, $ipaddresses = undef, $options = undef,
) { }
"""
WRITTEN = "written out"
BARS = {WRITTEN: 1.05, "PuppetDB": 0.9}


def exported(number: int) -> list[ExportedResource]:
    """Return the exports of a node."""
    return [resource(number, one, TAG) for one in range(EACH)]


async def publish_all(fleet: Fleet, member: Member, count: int, directory: Path) -> None:
    """Publish the exports of several nodes on the bus, as their agents do."""
    peers = [person(f"n{number:05}.example.com") for number in range(count)]
    trusted = verifier(directory, *peers)
    async with fleet.bus.open() as kv:
        for number, peer in enumerate(peers):
            name = NodeName(peer.name)
            TrustedKeys(member.root / "trusted").pin(SignerName(name), peer.key.public_key())
            packed, outbox = pack(exported(number)), ChunkOutbox(directory / name)
            outbox.write(packed.data)
            summary = ExportsSummary(
                count=packed.count, digest=packed.digest, size=len(packed.data)
            )
            voice = PublisherIdentity(
                node=name,
                signer=peer.signer,
                verifier=trusted,
                baggage=[exports_writer(name, outbox)],
            )
            said = entry(name, at=time.time(), exports=summary)
            await publish(kv, said.to_payload(), voice)


def write_module(member: Member, count: int) -> None:
    """Write both classes and the policy for a node."""
    written = []
    for one in (one for number in range(count) for one in exported(number)):
        values = ", ".join(f"{name} => {_puppet(value)}" for name, value in one.parameters.items())
        written.append(f"haproxy::balancermember {{ '{one.title}': {values} }}")
    member.node.app("", name="haproxy")
    for name, code in (
        ("balancermember", DEFINED),
        (
            "collects",
            f"class haproxy::collects {{ Haproxy::Balancermember <<| tag == '{TAG}' |>> }}",
        ),
        ("written", "class haproxy::written {\n" + "\n".join(written) + "\n}\n"),
    ):
        member.node.write(f"{MODULE}/{name}.pp", code)
    member.node.write("policies/collect.policy", "*\tHaproxy::Balancermember\t*\n")


def _puppet(value: object) -> str:
    """Return a value as Puppet code: JSON is valid code for the values here."""
    return json.dumps(value)


def choose(member: Member, name: str) -> None:
    """Configure the next run to apply one of the classes."""
    member.node.write(
        "input.yaml", json.dumps({"app": "haproxy/trunk", "classes": {f"haproxy::{name}": {}}})
    )


def applied(member: Member, name: str) -> Took:
    """Return the time of a run of a class, with the part of the agent."""
    choose(member, name)
    assert member.process is not None
    before = usage(member.process.pid).cpu
    took = timed(
        [*COMMAND, "apply"], member.node.environment(PYTHONPATH=str(REPOSITORY)), wanted=(0,)
    )
    return Took(took.wall, took.cpu + usage(member.process.pid).cpu - before)


def with_puppetdb(side: Side, member: Member, printed: str) -> Took:
    """Return the time of bare Puppet that collects from PuppetDB."""
    return timed(["/bin/sh", "-c", side.command(printed)], member.node.environment(), wanted=(0,))


def load(side: Side, count: int) -> None:
    """Load the exports of the nodes into PuppetDB."""
    for number in range(count):
        said = entry(f"n{number:05}.example.com", at=time.time())
        side.server.load(said, catalog_of(said, exported(number)))


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--terminus", type=Path, help="where Puppet's terminus of PuppetDB is")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="exports")))
        directory.chmod(0o755)
        bus = stack.enter_context(contextmanager(sqlite)(directory))
        probe = probe_puppet(directory / "probe")
        fleet = stack.enter_context(contextmanager(fleet_on)(directory, bus, probe))
        (member,) = fleet.add("lb", puppet=True)
        write_module(member, chosen.nodes)
        side = None
        if chosen.terminus is not None:
            side = stack.enter_context(puppetdb_beside([member], directory, chosen.terminus))
            load(side, chosen.nodes)
        (directory / "peers").mkdir()
        asyncio.run(publish_all(fleet, member, chosen.nodes, directory / "peers"))
        member.start(debug=False)
        held = HeldExports(member.node.state / FILE)
        member.node.wait_until(lambda: len(held.digests()) == chosen.nodes)
        times = measure(member, side, chosen.rounds)
    _show(times, chosen.nodes * EACH)


def measure(member: Member, side: Side | None, rounds: int) -> dict[str, list[Took]]:
    """Run all in turn; the first round only warms up."""
    times: dict[str, list[Took]] = {}
    choose(member, "collects")
    printed = printed_by(member)
    for number in range(rounds + 1):
        took = {WRITTEN: applied(member, "written"), "collects": applied(member, "collects")}
        if side is not None:  # with the node document of the run before it
            took["PuppetDB"] = with_puppetdb(side, member, printed)
        for name, one in took.items() if number else ():
            times.setdefault(name, []).append(one)
    return times


def _show(times: dict[str, list[Took]], count: int) -> None:
    print(
        f"| {count} resources | wall | CPU | ratio of collects to it | bar |\n|---|---|---|---|---|"
    )
    ours = statistics.median(one.wall for one in times["collects"])
    for name, took in times.items():
        wall = statistics.median(one.wall for one in took)
        cpu = statistics.median(one.cpu for one in took)
        bar = BARS.get(name, "")
        print(f"| {name} | {wall:.2f} s | {cpu:.2f} s | {ours / wall:.2f} | {bar} |")


if __name__ == "__main__":
    main()
