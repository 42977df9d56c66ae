"""Compares exported resources with a real PuppetDB: the same manifests on three nodes, twice.

Each node exports and collects the resources of `exporting/`, and every condition of `CONDITIONS` on
a separate type. `localpuppet apply` publishes them over a SQLite bus; then the script calls Puppet
with the same command and PuppetDB's terminus. In a second round, every node has all exports, and
the script compares the two catalogs of each node by resource and by edge.

    scripts/puppetdb [--differences]
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the rigs of the tests

from puppetdb_sides import Side, printed_by, puppetdb_beside

from localpuppet.fleet.exports.held import FILE, HeldExports
from localpuppet.node.puppet.command_line import error_lines
from localpuppet.node.puppet.types import METAPARAMETERS
from tests.rigs.buses import sqlite
from tests.rigs.fleet import Fleet
from tests.rigs.fleet_fixtures import fleet_on
from tests.rigs.member import Member
from tests.rigs.node import probe_puppet

CODE = Path(__file__).with_name("exporting") / "app"
NODES = ("a", "b", "c")
PATIENCE = 120.0
# The condition between the bars, and its title in Puppet.
CONDITIONS = (
    "",
    "tag == 'web'",
    "tag == 'WEB'",
    "tag != 'web'",
    "tag == 'web' and tag == 'dc1'",
    "tag == 'web' or tag == 'db'",
    "tag == 'web' and (port == 80 or kind == 'b') and flag != false",
    'tag == "of-${app::me}"',
    "tag == 'app'",
    "tag == 'app::conditions'",
    "title == 'a.example.com first'",
    "title == 'A.example.com First'",
    "title != 'a.example.com first'",
    "port == 80",
    "port == '80'",
    "port != 80",
    "kind == 'Web'",
    "kind == 'web'",
    "kind != 'web'",
    "list == 'one'",
    "list == $app::list",
    "list == $app::turned",
    "list != 'one'",
    "flag == true",
    "flag == 'true'",
    "flag != true",
    "fraction == 1",
    "nothing == undef",
    "kind == undef",
    "kind != undef",
    "nosuch == 'x'",
    "nosuch != 'x'",
    "kind == ''",
)
EXPORTED = """
  @@app::{name} {{ "${{app::me}} first":
    port => 80, kind => 'Web', list => ['one', 'Two'], flag => true, fraction => 1.0,
    refers => Notify['before'], tag => ['Web', 'dc1', "of-${{app::me}}"],
  }}
  @@app::{name} {{ "${{app::me}} second":
    port => '80', kind => 'web', list => ['one'], flag => false, tag => 'db',
  }}
  @@app::{name} {{ "${{app::me}} third": kind => '' }}
  App::{type} <<| {condition} |>>
"""
DEFINED = """define app::{name}(
  $port = undef, $kind = undef, $list = undef, $flag = undef, $fraction = undef,
  $refers = undef, $nothing = undef, $nosuch = undef,
) {{ }}
"""
# The policy line that permits all of them.
POLICY = "*.example.com\t{types}\t*\tas-is\n"


def write_module(member: Member) -> None:
    """Write the code, the input and the policy of a node."""
    module = "modules/app/trunk/app"
    bodies, types = [], ["Notify", "File", "App::Value", "App::Fragment"]
    for number, condition in enumerate(CONDITIONS):
        name = f"c{number:02}"
        types.append(f"App::{name.capitalize()}")
        bodies.append(EXPORTED.format(name=name, type=name.capitalize(), condition=condition))
        member.node.write(f"{module}/manifests/{name}.pp", DEFINED.format(name=name))
    conditions = f"class app::conditions {{\n{''.join(bodies)}}}\n"
    member.node.write(f"{module}/manifests/conditions.pp", conditions)
    member.node.app("", me=str(member.name), directory=str(member.root.parent / "files"))
    shutil.copytree(CODE, member.root / module, dirs_exist_ok=True)
    member.node.write("policies/collect.policy", POLICY.format(types=" ".join(types)))


def catalog_of(member: Member) -> Path:
    """Return the path of a catalog."""
    return member.root / "puppet" / "var" / "catalog.json"


def kept(member: Member) -> dict[str, Any]:
    """Return the catalog that Puppet just compiled, and remove it."""
    path = catalog_of(member)
    found: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    return found


def until_stored(side: Side, member: Member) -> None:
    """Wait until PuppetDB has the exports of a node, which it stores in one transaction."""
    query = f"resources[title] {{ exported = true and certname = '{member.name}' }}"
    end = time.monotonic() + PATIENCE
    while not side.server.ask(query):
        if time.monotonic() > end:
            raise SystemExit(f"PuppetDB has nothing of {member.name}")
        time.sleep(0.2)


def until_heard(member: Member) -> None:
    """Wait until a node's agent has the exports of all nodes."""
    held = HeldExports(member.node.state / FILE)
    member.node.wait_until(lambda: len(held.digests()) == len(NODES))
    held.close()


def by_ref(catalog: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the resources of a catalog by reference."""
    return {f"{one['type']}[{one['title']}]": one for one in catalog["resources"]}


def compared(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the kind and the place of each difference."""
    mine, other = by_ref(ours), by_ref(theirs)
    for ref in sorted({*mine, *other}):
        if ref not in mine or ref not in other:
            yield "resource", f"{ref} only in {'PuppetDB' if ref in other else 'localpuppet'}"
            continue
        one, two = normal(mine[ref]), normal(other[ref])
        if "file" not in two:  # PuppetDB's terminus does not return where a resource was exported
            one = {key: value for key, value in one.items() if key not in ("file", "line")}
        for field in sorted({*one, *two}):
            if one.get(field) != two.get(field):
                yield field, f"{ref}: localpuppet {one.get(field)!r}, PuppetDB {two.get(field)!r}"
    edges = [{(one["source"], one["target"]) for one in side["edges"]} for side in (ours, theirs)]
    for edge in sorted(edges[0] ^ edges[1]):
        yield "edge", f"{edge} only in {'localpuppet' if edge in edges[0] else 'PuppetDB'}"


def normal(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resource in its comparable form.

    Tags and relationships are sets, in which a single value need not be in a list. PuppetDB returns
    a `Binary` as its text in base64.
    """
    parameters: dict[str, Any] = {}
    for name, value in resource.get("parameters", {}).items():
        if name in METAPARAMETERS:
            listed = value if isinstance(value, list) else [value]
            parameters[name] = sorted(map(str, listed))
        elif isinstance(value, dict) and value.get("__ptype") == "Binary":
            parameters[name] = value["__pvalue"]
        else:
            parameters[name] = value
    return {**resource, "tags": sorted(resource["tags"]), "parameters": parameters}


def round_of(side: Side, member: Member) -> tuple[dict[str, Any], dict[str, Any]]:
    """Apply on a node with both; return both catalogs."""
    printed = printed_by(member)
    ours = kept(member)
    said = side.apply(printed)
    if error_lines(said.encode()) or not catalog_of(member).exists():
        raise SystemExit(f"{member.name}: {said}")
    return ours, kept(member)


@contextmanager
def fleet() -> Iterator[Fleet]:
    """Yield three nodes on one bus."""
    directory = Path(tempfile.mkdtemp(prefix="exports"))
    directory.chmod(0o755)
    try:
        probe = probe_puppet(directory / "probe")
        for bus in sqlite(directory):
            with contextmanager(fleet_on)(directory, bus, probe) as found:
                # Each node has an agent, or every collector would list the bus again.
                found.add(*NODES, puppet=True, agent={"react": False})
                yield found
    finally:
        shutil.rmtree(directory)


def main() -> None:
    """Compare, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--differences", action="store_true", help="print each that differs")
    parser.add_argument("--terminus", type=Path, required=True, help="where Puppet's terminus is")
    chosen = parser.parse_args()
    found: dict[str, list[str]] = {}
    with fleet() as made, puppetdb_beside(made.members, made.directory, chosen.terminus) as side:
        (made.directory / "files").mkdir()
        made.start()
        for member in made.members:
            write_module(member)
            round_of(side, member)
            until_stored(side, member)
        for member in made.members:
            until_heard(member)
        print(
            "| node | resources | of them collected | edges | that differ |\n|---|---|---|---|---|"
        )
        for member in made.members:
            ours, theirs = round_of(side, member)
            differs = list(compared(ours, theirs))
            counts = len(ours["resources"]), _collected(ours, member), len(ours["edges"])
            print(f"| {member.name} | {' | '.join(map(str, counts))} | {len(differs)} |")
            for what, where in differs:
                found.setdefault(what, []).append(f"{member.name}: {where}")
    for what, places in sorted(found.items()):
        print(f"\n{what}: {len(places)} differ, for instance\n  {places[0]}")
        if chosen.differences:
            print("\n".join(f"  {one}" for one in places[1:]))
    sys.exit(bool(found))


def _collected(catalog: Mapping[str, Any], member: Member) -> int:
    """Return how many of a catalog's resources other nodes export."""
    others = [f"{name}.example.com" for name in NODES if not member.name.startswith(name)]
    return sum(any(other in one["title"] for other in others) for one in catalog["resources"])


if __name__ == "__main__":
    main()
