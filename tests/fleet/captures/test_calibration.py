"""Calibration: the catalog compiled from a capture is the one that the node compiled itself.

The nodes have different roles. Each has its own root, real runs, a bus, and its own facts (some
replace Facter's); it has an input with layers, classes, parameters, secrets, an ENC command, user
data of a cloud, queries and collectors.
"""

import base64
import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.captures import CaptureKeeper, CaptureRules, read_capture
from localpuppet.fleet.inventory.facts import FactSelection
from localpuppet.fleet.kept_catalogs import CatalogKeeper, unpack_catalog
from localpuppet.fleet.requests.request import ChunkArguments
from localpuppet.node.enc.input import read_enc
from localpuppet.node.preview.cache import request_of
from localpuppet.node.preview.node_capture import NodeCapture, WithheldKeys
from localpuppet.node.puppet.catalog import CanonicalCatalog, CatalogResource
from localpuppet.node.releases.release import Release
from tests.node.preview.rig import compile_all, make_engine
from tests.rigs.fleet import Fleet
from tests.rigs.long import with_sample
from tests.rigs.member import Member

DATA = Path(__file__).parents[2] / "data" / "calibration"
ROLES = ("web", "db", "lb", "cache", "cloud", "mail", "enc")
FAMILIES = (("Debian", "Debian", "12"), ("RedHat", "Rocky", "9"), ("Debian", "Ubuntu", "22.04"))
ENC = """#!/bin/sh
echo '{"parameters": {"role": "enc", "tier": "of the enc"}, "classes": ["profile::cache"]}'
"""


@dataclass
class CalibratedNode:
    """A node, and what its catalog and the one of its capture differ in.

    Attributes:
        member: The node.
        role: Its role.
        withheld: The references of resources with a value that is withheld.
    """

    member: Member
    role: str
    withheld: set[tuple[str, str]] = field(default_factory=set)

    @property
    def name(self) -> NodeName:
        return self.member.name

    @property
    def release(self) -> Release:
        """The release, as a preview sees it."""
        directory = self.member.root / "modules" / "site" / "trunk"
        return Release(
            name="site/trunk",
            directory=directory,
            modulepath=(directory,),
            names=(),
            enc=read_enc(directory / "enc.yaml", Documents(None)),
            hiera_config=directory / "hiera.yaml",
            site_manifest=self.member.root / "manifests" / "default.pp",
            mutable=(),
            trees={"": directory},
        )

    def own_catalog(self) -> CanonicalCatalog:
        keeper = CatalogKeeper(self.member.node.state)
        return unpack_catalog(keeper.outbox.read(keeper.header().digest), node=self.name)

    def capture(self) -> NodeCapture:
        rules = CaptureRules(selection=FactSelection(), keys=WithheldKeys(shown=("cluster",)))
        reply: Any = CaptureKeeper(self.member.node.state, rules).reply(ChunkArguments())
        return read_capture(self.name, base64.b64decode(reply["data"]))


def make_calibrated(fleet: Fleet, number: int, directory: Path) -> CalibratedNode:
    """Make the node of this number, from 0."""
    role, name = ROLES[number % len(ROLES)], f"n{number}"
    settings: dict[str, Any] = {"capture": {"show": ["cluster"]}}
    if role == "enc":
        script = directory / f"enc-{number}"
        script.write_text(ENC)
        script.chmod(0o755)
        settings["enc"] = str(script)
    if role == "cloud":
        settings["instance_data"] = {"cloud_init": _cloud(directory / f"cloud-{number}")}
    member = fleet.add_one(name, puppet=True, **settings)
    node = CalibratedNode(member=member, role=role)
    shutil.copytree(DATA, member.root / "modules" / "site" / "trunk")
    member.node.write("node_facts.json", json.dumps(_facts(member, number)))
    member.node.write("input.yaml", json.dumps(_input(node, number)))
    return node


def _cloud(directory: Path) -> dict[str, str]:
    from tests.node.enc.instance.cloud_init import CloudInit

    directory.mkdir()
    machine = CloudInit(directory)
    machine.boot(b"#!/bin/sh\n#cluster=blue\n#role=cloud\n")
    return machine.places


def _facts(member: Member, number: int) -> dict[str, Json]:
    family, system, release = FAMILIES[number % len(FAMILIES)]
    facts: dict[str, Json] = {
        "node_root": str(member.root),
        "datacenter": ("ber", "lis", "nowhere")[number % 3],
        "site_colour": ("green", "blue")[number % 2],
        "processors": {"count": 1 + number % 8, "models": ["x"]},
        "os": {"family": family, "name": system, "release": {"full": release, "major": release}},
        "osfamily": family,
        "operatingsystem": system,
    }
    return {**facts, **({"site": {"rack": f"r{number}"}} if number % 4 == 0 else {})}


def _input(node: CalibratedNode, number: int) -> dict[str, Any]:
    role = node.role
    classes: dict[str, Any] = {"profile::base": {}}
    parameters: dict[str, Any] = {} if role in ("enc", "cloud") else {"role": role}
    if role in ("web", "db", "lb", "cloud"):
        classes[f"profile::{role}"] = {}
    if role == "web" and number > 6:
        classes["profile::web"] = {"workers": 3, "sites": None}
    if role == "db":
        root = node.member.root
        classes["profile::db"] = {"db_password": "CANARY", "options": {"a": [1, 2.5, True, None]}}
        node.withheld = {("File", f"{root}/made/pgpass"), ("Class", "Profile::Db")}
    layers = [["production"], [], ["production", "canary"]][number % 3]
    if not layers:
        parameters["zone"] = f"zone-{number}"
    return {"app": "site/trunk", "layers": layers, "classes": classes, "parameters": parameters}


def differences(own: CanonicalCatalog, compiled: CanonicalCatalog) -> dict[str, Any]:
    """Return what two catalogs differ in, by the name of the resource or part."""
    found: dict[str, Any] = {}
    for name in ("certname", "environment", "classes"):
        if getattr(own, name) != getattr(compiled, name):
            found[name] = (getattr(own, name), getattr(compiled, name))
    if own.edges != compiled.edges:
        found["edges"] = {*own.edges} ^ {*compiled.edges}
    before, after = _resources(own), _resources(compiled)
    for reference in before.keys() | after.keys():
        one, other = _parts(before.get(reference)), _parts(after.get(reference))
        parts = {
            part: (one.get(part), other.get(part))
            for part in one.keys() | other.keys()
            if one.get(part) != other.get(part)
        }
        if parts:
            found[str(reference)] = parts
    return found


def _resources(catalog: CanonicalCatalog) -> Mapping[tuple[str, str], CatalogResource]:
    return {resource.reference: resource for resource in catalog.resources}


def _parts(resource: CatalogResource | None) -> dict[str, Json]:
    if resource is None:
        return {}
    return {
        **resource.parameters,
        "(exported)": resource.exported,
        "(tags)": [*resource.tags],
        "(line)": resource.line,
    }


pytestmark = pytest.mark.puppet
# Bytes of a capture: facts, an input, some answers.
LARGEST = 64 * 1024


def applied(node: CalibratedNode) -> None:
    node.member.run("apply", code=0)


@pytest.mark.parametrize("count", with_sample([7, 20], 7))
def test_a_capture_compiles_to_the_node_s_catalog(fleet: Fleet, tmp_path: Path, count: int) -> None:
    nodes = [make_calibrated(fleet, number, tmp_path) for number in range(count)]
    names = "".join(f"{node.name}\tNotify\t*\n" for node in nodes)
    for node in nodes:
        node.member.node.write("policies/collect.policy", names)
    asking = [node for node in nodes if node.role == "lb"]  # they ask the others
    with ThreadPoolExecutor(4) as pool:
        for group in ([node for node in nodes if node not in asking], asking):
            list(pool.map(applied, group))
    captures = {node.name: node.capture() for node in nodes}
    for capture in captures.values():
        assert b"CANARY" not in capture.to_bytes()
        assert len(capture.to_bytes()) < LARGEST
    engine = make_engine(tmp_path / "engine", processes=os.cpu_count() or 1)
    release = nodes[0].release  # all have the same
    requests = [request_of(capture, release.enc) for capture in captures.values()]
    results = compile_all(engine, release, requests)
    unequal = {}
    for node in nodes:
        compiled = results[node.name].catalog
        assert compiled is not None, (node.name, node.role, results[node.name].failure)
        found = differences(node.own_catalog(), compiled)
        assert {str(reference) for reference in node.withheld} <= set(found), node.name
        for reference in node.withheld:
            del found[str(reference)]
        if found:
            unequal[f"{node.name} ({node.role})"] = found
    assert unequal == {}
