"""The facts of one node as queries see them: those that were published, and their older names.

Owns: which of Facter's older names stand for which structured fact, and the three names by which
a node cannot be called as it likes: `fqdn`, `clientcert` and the `role` that its entry claims.

Manifests of the predecessors ask for `hostname`, `ipaddress`, `osfamily`…, which Puppet 8 does not
have any more. A fact that was published is never replaced by a derived one, save those three.
"""

import re
from collections.abc import Iterator, Mapping

from localpuppet.base.formats.json_text import compact
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.brief import KnownNode
from localpuppet.fleet.inventory.index import PATHS

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
# What is told of a node without its entry, by path: what many ask for, and what is essential.
TOLD: Mapping[tuple[str | int, ...], str] = {
    tuple(path.split(".")): path for path in (*PATHS, "hostname", "ipaddress", "ipaddress6")
}
# Longer texts stay in the entry.
MAX_TOLD = 200


class NodeFacts:
    """The facts of one node; its entry is unpacked only for a fact that is not told without.

    Args:
        known: The node.
    """

    __slots__ = ("_known", "_of_interfaces", "_own", "_published_")

    def __init__(self, known: KnownNode) -> None:
        self._known = known
        name, roles = str(known.node), known.roles
        self._own: dict[str, Json] = {"fqdn": name, "clientcert": name}
        if roles:
            self._own["role"] = roles[0] if len(roles) == 1 else list(roles)
        self._published_: Mapping[str, Json] | None = None
        self._of_interfaces: dict[str, Json] | None = None

    def at(self, path: tuple[str | int, ...]) -> Json:
        """Return what is at a path of one step or more; `None` where nothing is.

        Raises:
            StateError: The entry cannot be read.
        """
        first = str(path[0])
        if first not in self._own and path in TOLD and TOLD[path] in self._known.told:
            return self._known.told[TOLD[path]]
        return dig(self.get(first), path[1:])

    def get(self, name: str) -> Json:
        """Return a fact by its name; `None` where there is none.

        Raises:
            StateError: The entry cannot be read.
        """
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

    def text(self) -> str:
        """Return all of them as a JSON object, as `whole` has them."""
        return self._known.written(lambda: compact(self.whole()))

    def essential(self) -> dict[str, Json]:
        """Return those that make an answer of whole fact hashes another one."""
        return {name: self.at((name,)) for name in ESSENTIAL}

    def told(self) -> dict[str, Json]:
        """Return those of `TOLD` that are short and not lists or mappings."""
        found = {dotted: self.at(path) for path, dotted in TOLD.items()}
        return {
            dotted: value
            for dotted, value in found.items()
            if not isinstance(value, list | dict) and len(str(value)) <= MAX_TOLD
        }

    @property
    def _published(self) -> Mapping[str, Json]:
        if self._published_ is None:
            self._published_ = self._known.entry().facts
        return self._published_

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
