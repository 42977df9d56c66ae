"""Names and shapes of published facts, the same for Facter 4 and OpenFact: run on each Debian.

Facter 4.3 is in Debian 12, Facter 4.10 in Debian 13, OpenFact 6 in Debian 14.
"""

import json
from typing import Any

import pytest

from tests.rigs.node import Node, completed

# What each machine has, a container included: Facter finds `virtual` only if it may read the
# environment of process 1.
STRUCTURED: dict[str, type] = {
    "facterversion": str,
    "filesystems": str,
    "fips_enabled": bool,
    "identity.gid": int,
    "identity.group": str,
    "identity.privileged": bool,
    "identity.uid": int,
    "identity.user": str,
    "kernel": str,
    "kernelmajversion": str,
    "kernelrelease": str,
    "kernelversion": str,
    "memory.system.total": str,
    "memory.system.total_bytes": int,
    "networking.fqdn": str,
    "networking.hostname": str,
    "networking.interfaces.lo.bindings": list,
    "networking.interfaces.lo.ip": str,
    "networking.interfaces.lo.mtu": int,
    "networking.interfaces.lo.netmask": str,
    "networking.interfaces.lo.network": str,
    "os.architecture": str,
    "os.distro.codename": str,
    "os.distro.description": str,
    "os.distro.id": str,
    "os.distro.release.full": str,
    "os.distro.release.major": str,
    "os.family": str,
    "os.hardware": str,
    "os.name": str,
    "os.release.full": str,
    "os.release.major": str,
    "os.selinux.enabled": bool,
    "path": str,
    "processors.count": int,
    "processors.isa": str,
    "processors.models": list,
    "processors.physicalcount": int,
    "puppetversion": str,
    "ruby.platform": str,
    "ruby.sitedir": str,
    "ruby.version": str,
    "timezone": str,
}
LEGACY: dict[str, type] = {
    "architecture": str,
    "fqdn": str,
    "gid": str,
    "hardwareisa": str,
    "hardwaremodel": str,
    "hostname": str,
    "id": str,
    "interfaces": str,
    "ipaddress_lo": str,
    "lsbdistcodename": str,
    "lsbdistdescription": str,
    "lsbdistid": str,
    "lsbdistrelease": str,
    "lsbmajdistrelease": str,
    "memorysize": str,
    "mtu_lo": int,
    "netmask_lo": str,
    "network_lo": str,
    "operatingsystem": str,
    "operatingsystemmajrelease": str,
    "operatingsystemrelease": str,
    "osfamily": str,
    "physicalprocessorcount": int,
    "processorcount": int,
    "rubyplatform": str,
    "rubysitedir": str,
    "rubyversion": str,
    "selinux": bool,
}
# A node's name decides these, not its Facter.
OF_THE_NAME = {"domain", "fqdn", "hostname"}


@pytest.fixture
def published(node: Node) -> dict[str, Any]:
    """The facts of a real run, as another node's query gets them."""
    node.settings(bus="sqlite", node="web01.example.com")
    node.app("")
    node.run("apply", code=0)
    node.run("inventory", "publish", code=0)
    names = ",".join([*STRUCTURED, *LEGACY])
    asked = node.run("query", "", "--show", names, "--json", code=0)
    (found,) = asked.json["nodes"]
    facts: dict[str, Any] = found["facts"]
    return facts


def of_facter() -> dict[str, Any]:
    """Return the legacy facts of the installed Facter that a table names."""
    answer = completed("facter", "--show-legacy", "--json", *LEGACY).out
    return {name: value for name, value in json.loads(answer).items() if value is not None}


def test_a_node_publishes_the_same_shapes_with_any_facter(published: dict[str, Any]) -> None:
    wanted = {**STRUCTURED, **LEGACY}
    shapes = {name: type(published.get(name)) for name in wanted}
    assert shapes == wanted, f"with Facter {published['facterversion']}"


def test_legacy_facts_have_the_values_that_facter_gives_them(published: dict[str, Any]) -> None:
    own = {name: value for name, value in of_facter().items() if name not in OF_THE_NAME}
    assert {name: published.get(name) for name in own} == own
    assert {"operatingsystem", "osfamily", "processorcount", "ipaddress_lo"} <= own.keys()
