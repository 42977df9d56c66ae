"""The facts of one node as queries see them: published facts, and Facter's legacy names.

- Manifests for older Puppet versions use `hostname`, `ipaddress` or `osfamily`, which Puppet 8 no
  longer has. They are derived from structured facts.
- A derived fact never replaces a published one, except `fqdn`, `clientcert` and `role`, which come
  from the entry and not from the facts.
"""

import re
from collections.abc import Iterator, Mapping

from localpuppet.base.formats.json_text import compact
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry_brief import InventoryNode
from localpuppet.fleet.inventory.index import PATHS

# Facter 4's legacy facts that follow from one structured fact:
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
# Prefix of the legacy name of an interface fact → its key in `networking.interfaces`.
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
# Characters of an interface name that are replaced in a legacy fact: `eth0.1` is `eth0_1`.
_NOT_IN_LEGACY = re.compile(r"[^A-Za-z0-9_]")
# With more interfaces, a node has no legacy facts for the others.
MAX_INTERFACES = 1000
# The facts of a whole fact hash whose change is a new answer, and causes a reaction.
ESSENTIAL = ("fqdn", "hostname", "ipaddress", "ipaddress6", "role")
# Facts by path that are stored outside of the packed entry: frequent and essential ones.
FREQUENT: Mapping[tuple[str | int, ...], str] = {
    tuple(path.split(".")): path for path in (*PATHS, "hostname", "ipaddress", "ipaddress6")
}
# Longer texts are in the entry only.
MAX_FREQUENT = 200


class PackedFacts:
    """The facts of one node; its entry is unpacked only for facts that are not in the brief.

    Args:
        known: The node.
    """

    __slots__ = ("_known", "_of_interfaces", "_own", "_published_")

    def __init__(self, known: InventoryNode) -> None:
        self._known = known
        name, roles = str(known.node), known.roles
        self._own: dict[str, Json] = {"fqdn": name, "clientcert": name}
        if roles:
            self._own["role"] = roles[0] if len(roles) == 1 else list(roles)
        self._published_: Mapping[str, Json] | None = None
        self._of_interfaces: dict[str, Json] | None = None

    def at(self, path: tuple[str | int, ...]) -> Json:
        """Return the value at a path of at least one step; `None` if it is missing."""
        first = str(path[0])
        if (
            first not in self._own
            and path in FREQUENT
            and FREQUENT[path] in self._known.frequent_facts
        ):
            return self._known.frequent_facts[FREQUENT[path]]
        return dig(self.get(first), path[1:])

    def get(self, name: str) -> Json:
        """Return a fact by name; `None` if it is missing."""
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
        """Yield every fact that is not null, sorted by name."""
        yield from self.whole().items()

    def whole(self) -> dict[str, Json]:
        """Return all facts that are not null, sorted by name."""
        derived = {name: dig(self._published, path) for name, path in DERIVED.items()}
        facts = {**self._interfaces(), **derived, **self._published, **self._own}
        return {name: facts[name] for name in sorted(facts) if facts[name] is not None}

    def text(self) -> str:
        """Return the facts of `whole` as a JSON object."""
        return self._known.written(lambda: compact(self.whole()))

    def essential(self) -> dict[str, Json]:
        """Return the facts whose change makes an answer of whole fact hashes a new one."""
        return {name: self.at((name,)) for name in ESSENTIAL}

    def frequent_facts(self) -> dict[str, Json]:
        """Return the facts of `FREQUENT` that are short scalars."""
        values = {dotted: self.at(path) for path, dotted in FREQUENT.items()}
        return {
            dotted: value
            for dotted, value in values.items()
            if not isinstance(value, list | dict) and len(str(value)) <= MAX_FREQUENT
        }

    @property
    def _published(self) -> Mapping[str, Json]:
        if self._published_ is None:
            self._published_ = self._known.entry().facts
        return self._published_

    def _interfaces(self) -> dict[str, Json]:
        """Return the legacy facts of the network interfaces, cached."""
        if self._of_interfaces is None:
            interfaces = dig(self._published, ("networking", "interfaces"))
            listed = (
                list(interfaces.items())[:MAX_INTERFACES] if isinstance(interfaces, dict) else []
            )
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
    """Return whether a fact may differ from the entry's value of that name."""
    return (
        name in DERIVED
        or name in ("fqdn", "clientcert", "role", "interfaces")
        or name.partition("_")[0] in _OF_INTERFACE
    )


def dig(value: Json | Mapping[str, Json], path: tuple[str | int, ...]) -> Json:
    """Return the value at a path in a value; `None` if it is missing."""
    for step in path:
        if isinstance(value, Mapping):
            value = value.get(str(step))
        elif isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value):
            value = value[step]
        else:
            return None
    return value if not isinstance(value, Mapping) or isinstance(value, dict) else dict(value)
