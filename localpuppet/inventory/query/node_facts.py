"""The facts of one node as queries see them: those that were published, and their older names.

Owns: which of Facter's older names stand for which structured fact, and the three names by which
a node cannot be called as it likes: `fqdn`, `clientcert` and the `role` that its entry claims.

Manifests of the predecessors ask for `hostname`, `ipaddress`, `osfamily`…, which Puppet 8 does not
have any more. A fact that was published is never replaced by a derived one, save those three.
"""

import re
from collections.abc import Iterator, Mapping

from localpuppet.formats.values import Json
from localpuppet.inventory.entry import InventoryEntry

# Facter 4's "legacy" facts that follow from one structured fact:
# https://www.puppet.com/docs/puppet/7/core_facts.html
DERIVED: Mapping[str, tuple[str, ...]] = {
    "architecture": ("os", "architecture"),
    "dhcp_servers": ("networking", "dhcp"),
    "domain": ("networking", "domain"),
    "gid": ("identity", "group"),
    "hardwareisa": ("processors", "isa"),
    "hardwaremodel": ("os", "hardware"),
    "hostname": ("networking", "hostname"),
    "id": ("identity", "user"),
    "ipaddress": ("networking", "ip"),
    "ipaddress6": ("networking", "ip6"),
    "lsbdistcodename": ("os", "distro", "codename"),
    "lsbdistdescription": ("os", "distro", "description"),
    "lsbdistid": ("os", "distro", "id"),
    "lsbdistrelease": ("os", "distro", "release", "full"),
    "lsbmajdistrelease": ("os", "distro", "release", "major"),
    "lsbminordistrelease": ("os", "distro", "release", "minor"),
    "macaddress": ("networking", "mac"),
    "memorysize": ("memory", "system", "total"),
    "netmask": ("networking", "netmask"),
    "netmask6": ("networking", "netmask6"),
    "network": ("networking", "network"),
    "network6": ("networking", "network6"),
    "operatingsystem": ("os", "name"),
    "operatingsystemmajrelease": ("os", "release", "major"),
    "operatingsystemrelease": ("os", "release", "full"),
    "osfamily": ("os", "family"),
    "physicalprocessorcount": ("processors", "physicalcount"),
    "processorcount": ("processors", "count"),
    "productname": ("dmi", "product", "name"),
    "manufacturer": ("dmi", "manufacturer"),
    "rubyplatform": ("ruby", "platform"),
    "rubysitedir": ("ruby", "sitedir"),
    "rubyversion": ("ruby", "version"),
    "selinux": ("os", "selinux", "enabled"),
    "swapsize": ("memory", "swap", "total"),
}
# What the older name of an interface's fact begins with → its key in `networking.interfaces`.
_OF_INTERFACE = {
    "ipaddress": "ip",
    "ipaddress6": "ip6",
    "macaddress": "mac",
    "mtu": "mtu",
    "netmask": "netmask",
    "netmask6": "netmask6",
    "network": "network",
    "network6": "network6",
}
# What of an interface's name does not stand in an older fact's name: `eth0.1` is `eth0_1`.
_NOT_IN_LEGACY = re.compile(r"[^A-Za-z0-9_]")
# Of more interfaces a node has no older facts.
MAX_INTERFACES = 1000
# What of a whole fact hash makes an answer another one (a reaction follows from that).
ESSENTIAL = ("fqdn", "hostname", "ipaddress", "ipaddress6", "role")


class NodeFacts:
    """The facts of one node.

    Args:
        entry: What the node says of itself.
    """

    def __init__(self, entry: InventoryEntry) -> None:
        self._published = entry.facts
        self._own: dict[str, Json] = {"fqdn": str(entry.node), "clientcert": str(entry.node)}
        if entry.roles:
            self._own["role"] = entry.roles[0] if len(entry.roles) == 1 else list(entry.roles)
        self._of_interfaces: dict[str, Json] | None = None

    def get(self, name: str) -> Json:
        """Return a fact by its name; `None` where there is none."""
        if name in self._own:
            return self._own[name]
        if name in self._published:
            return self._published[name]
        if name in DERIVED:
            return dig(self._published, DERIVED[name])
        if name == "interfaces" or name.partition("_")[0] in _OF_INTERFACE:
            return self._interfaces().get(name)
        return None

    def items(self) -> Iterator[tuple[str, Json]]:
        """Yield every fact, sorted by its name; none is null."""
        yield from self.whole().items()

    def whole(self) -> dict[str, Json]:
        """Return all of them, sorted by name; none is null."""
        derived = {name: dig(self._published, path) for name, path in DERIVED.items()}
        found = {**self._interfaces(), **derived, **self._published, **self._own}
        return {name: found[name] for name in sorted(found) if found[name] is not None}

    def essential(self) -> dict[str, Json]:
        """Return those that make an answer of whole fact hashes another one."""
        return {name: self.get(name) for name in ESSENTIAL}

    def _interfaces(self) -> dict[str, Json]:
        """Return the older facts of the network's interfaces; made once."""
        if self._of_interfaces is None:
            found = dig(self._published, ("networking", "interfaces"))
            listed = list(found.items())[:MAX_INTERFACES] if isinstance(found, dict) else []
            named = [(_NOT_IN_LEGACY.sub("_", name), about) for name, about in listed]
            made: dict[str, Json] = {
                f"{kind}_{name}": about[key]
                for name, about in named
                if isinstance(about, dict)
                for kind, key in _OF_INTERFACE.items()
                if key in about
            }
            if named:
                made["interfaces"] = ",".join(name for name, _ in named)
            self._of_interfaces = made
        return self._of_interfaces


def may_be_derived(name: str) -> bool:
    """Return whether a fact's value may not be what the entry has under that name."""
    return (
        name in DERIVED
        or name in ("fqdn", "clientcert", "role", "interfaces")
        or name.partition("_")[0] in _OF_INTERFACE
    )


def dig(value: Json | Mapping[str, Json], path: tuple[str | int, ...]) -> Json:
    """Return what is at a path in a value; `None` where nothing is."""
    for step in path:
        if isinstance(value, Mapping):
            value = value.get(str(step))
        elif isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value):
            value = value[step]
        else:
            return None
    return value if not isinstance(value, Mapping) or isinstance(value, dict) else dict(value)
