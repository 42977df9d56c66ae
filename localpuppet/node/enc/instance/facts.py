"""Facts from instance data: which names they may have, which leave the node, how Puppet gets them.

A fact that Facter does not find on this machine (`ec2_metadata` elsewhere, `mtu_eth9` without that
card) is also Facter's: code that reads it trusts Facter. So the list has the names of all systems
that Facter supports, with its legacy facts (`Facter::Config::FACT_GROUPS` and `FACT_NAME`,
`ALIASES` of `lib/facter/facts/` in Facter 4.3).

- `instance_id` is a fact.
- A line `key=value` of the user data is a fact. Comment signs before the key are ignored, so that a
  line of a script may be a fact: `#role=web`. The key begins the line and is a name. If a key
  occurs several times, the last line wins, as in a shell. Other lines are ignored.
- User data never sets Facter's own facts, Puppet's, or a second `instance_id`.
- User data that is an input, or that is not text, has no such lines.

Example: `facts_of(data).facts == {"instance_id": "i-0a1b", "role": "web"}`.

The facts are neither in the environment, which Puppet's child processes inherit, nor on a command
line, which all users can read: user data often holds secrets. localpuppet's Ruby code reads the
file: `modules/localpuppet/localpuppet/lib/facter/localpuppet_instance.rb`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import translate
from functools import cache
from pathlib import Path

from localpuppet.base.formats.names import RESERVED_PARAMETERS
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.base.machine.files import make_private, remove, write_json
from localpuppet.base.value import Value
from localpuppet.node.enc.instance.data import InstanceData

_STRUCTURED = """
aio_agent_build aio_agent_version augeas az_metadata cloud disks dmi ec2_* facterversion filesystems
fips_enabled gce hypervisors identity is_virtual kernel kernelmajversion kernelrelease kernelversion
ldom load_averages memory mountpoints networking nim_type os partitions path processors ps ruby
solaris_zones ssh system_profiler system_uptime timezone virtual xen zfs_* zpool_*
"""
# Facter hides these facts by default: structured facts have their values.
_LEGACY = """
architecture augeasversion bios_* blockdevice_* blockdevices board* chassis* dhcp_servers domain
fqdn gid hardwareisa hardwaremodel hostname id interfaces ipaddress ipaddress6 ipaddress6_*
ipaddress_* ldom_* lsb* macaddress macaddress_* macosx_* manufacturer memoryfree* memorysize* mtu_*
netmask netmask6 netmask6_* netmask_* network network6 network6_* network_* operatingsystem*
osfamily physicalprocessorcount processor processor[0-9]* processorcount productname productversion
rubyplatform rubysitedir rubyversion scope6 scope6_* selinux selinux_* serialnumber sp_* ssh*key
sshfp_* swap* system32 uptime uptime_* uuid windows_* xendomains zone_* zonename zones
"""
# Legacy name → path of the structured fact with its value.
_PATHS = """
architecture=os.architecture augeasversion=augeas.version bios_release_date=dmi.bios.release_date
bios_vendor=dmi.bios.vendor bios_version=dmi.bios.version boardmanufacturer=dmi.board.manufacturer
boardproductname=dmi.board.product boardserialnumber=dmi.board.serial_number
chassistype=dmi.chassis.type domain=networking.domain fqdn=networking.fqdn gid=identity.group
hardwareisa=processors.isa hardwaremodel=os.hardware hostname=networking.hostname id=identity.user
ipaddress=networking.ip ipaddress6=networking.ip6 lsbdistcodename=os.distro.codename
lsbdistdescription=os.distro.description lsbdistid=os.distro.id
lsbdistrelease=os.distro.release.full lsbmajdistrelease=os.distro.release.major
lsbminordistrelease=os.distro.release.minor macaddress=networking.mac
manufacturer=dmi.manufacturer memoryfree=memory.system.available
memoryfree_mb=memory.system.available_bytes memorysize=memory.system.total
memorysize_mb=memory.system.total_bytes netmask=networking.netmask netmask6=networking.netmask6
network=networking.network network6=networking.network6 operatingsystem=os.name
operatingsystemmajrelease=os.release.major operatingsystemrelease=os.release.full
osfamily=os.family physicalprocessorcount=processors.physicalcount
processorcount=processors.count productname=dmi.product.name rubyplatform=ruby.platform
rubysitedir=ruby.sitedir rubyversion=ruby.version scope6=networking.scope6
selinux=os.selinux.enabled selinux_config_mode=os.selinux.config_mode
selinux_config_policy=os.selinux.config_policy selinux_current_mode=os.selinux.current_mode
selinux_enforced=os.selinux.enforced selinux_policyversion=os.selinux.policy_version
serialnumber=dmi.product.serial_number sshdsakey=ssh.dsa.key sshecdsakey=ssh.ecdsa.key
sshed25519key=ssh.ed25519.key sshrsakey=ssh.rsa.key swapfree=memory.swap.available
swapfree_mb=memory.swap.available_bytes swapsize=memory.swap.total
swapsize_mb=memory.swap.total_bytes uptime=system_uptime.uptime uptime_days=system_uptime.days
uptime_hours=system_uptime.hours uptime_seconds=system_uptime.seconds uuid=dmi.product.uuid
"""
_OF_INTERFACES = {"ip": "ipaddress", "ip6": "ipaddress6", "mac": "macaddress"}
_OF_DISKS = {"model": "model", "size_bytes": "size", "vendor": "vendor"}
_BYTES = 1024 * 1024
_PUPPET = (*RESERVED_PARAMETERS, "certname", "pe_*", "puppetversion")


def is_own_fact(name: str) -> bool:
    """Return whether a fact's name, in lower case, is reserved for Facter or Puppet."""
    return _own().match(name) is not None


def is_legacy_fact(name: str) -> bool:
    """Return whether a fact's name is one that Facter hides unless it is asked for legacy facts."""
    return _legacy().match(name) is not None


def legacy_facts(facts: Mapping[str, Json]) -> dict[str, tuple[list[str], Json]]:
    """Return the legacy facts that structured ones have: name → the path, and the value there."""
    return {name: (path, value) for name, path, value in _found(facts) if value is not None}


def _found(facts: Mapping[str, Json]) -> Iterator[tuple[str, list[str], Json]]:
    for pair in _PATHS.split():
        name, _, dotted = pair.partition("=")
        value: Json = {**facts}
        for step in dotted.split("."):
            value = mapping_of(value).get(step)
        if name.endswith("_mb") and isinstance(value, int):
            value = value / _BYTES
        yield name, dotted.split("."), value
    interfaces = mapping_of(mapping_of(facts.get("networking")).get("interfaces"))
    disks = mapping_of(facts.get("disks"))
    for names, path, places in (
        ("interfaces", ["networking", "interfaces"], interfaces),
        ("blockdevices", ["disks"], disks),
    ):
        labels = {label: re.sub(r"\W", "_", label) for label in places}
        yield names, path, ",".join(labels.values()) or None
        for label, about in places.items():
            for key, value in mapping_of(about).items():
                if places is interfaces:
                    older = f"{_OF_INTERFACES.get(key, key)}_{labels[label].lower()}"
                else:
                    older = f"blockdevice_{labels[label].lower()}_{_OF_DISKS.get(key, key)}"
                yield older, [*path, label, key], value
    models = mapping_of(facts.get("processors")).get("models")
    for number, model in enumerate(models if isinstance(models, list) else ()):
        yield f"processor{number}", ["processors", "models"], model


@cache
def _own() -> re.Pattern[str]:
    return _pattern(*_STRUCTURED.split(), *_LEGACY.split(), *_PUPPET)


@cache
def _legacy() -> re.Pattern[str]:
    return _pattern(*_LEGACY.split())


def _pattern(*names: str) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, names)))


MAX_FACTS = 256
MAX_VALUE = 4096
INSTANCE_ID = "instance_id"
# Facts that leave the node in any case: its role.
_PUBLISHED = frozenset({"role"})
_LINE = re.compile(r"(?:#+[ \t]*)?([A-Za-z][A-Za-z0-9_]{0,63})[ \t]*=(.*)")


class InstanceFacts(Value):
    """The facts in instance data.

    Attributes:
        facts: Values by name; all of them text.
        left_out: Names of refused facts → the reason, in a few words.
    """

    facts: Mapping[str, str]
    left_out: Mapping[str, str]


def facts_of(data: InstanceData) -> InstanceFacts:
    """Return the facts of instance data."""
    facts = {INSTANCE_ID: data.instance_id}
    left_out: dict[str, str] = {}
    for name, value in _lines(data).items():
        problem = _problem(name, value, len(facts))
        if problem:
            left_out[name] = problem
        else:
            facts[name] = value
    return InstanceFacts(facts=facts, left_out=left_out)


def withheld(names: Iterable[str]) -> frozenset[str]:
    """Return which facts from instance data leave the node only if the settings name them.

    User data often holds secrets; the role is meant for publishing.

    Args:
        names: The facts that a run had from instance data: `instance_facts` of its request.
    """
    return frozenset(names) - _PUBLISHED


def _lines(data: InstanceData) -> dict[str, str]:
    if data.is_input:
        return {}
    try:
        text = data.user_data.decode("utf-8")
    except UnicodeDecodeError:
        return {}
    facts = {}
    for line in text.split("\n"):
        match = _LINE.match(line)
        if match:
            facts[match.group(1).lower()] = match.group(2).strip()
    return facts


def _problem(name: str, value: str, count: int) -> str:
    if count >= MAX_FACTS:
        return f"the user data has more than {MAX_FACTS} facts"
    if name == INSTANCE_ID:
        return "the instance's own id has that name"
    if is_own_fact(name):
        return "Facter or Puppet has facts of that name"
    if len(value.encode("utf-8", "surrogatepass")) > MAX_VALUE:
        return f"the value has more than {MAX_VALUE} bytes"
    if one_line(value) != value:
        return "the value has a control character"
    return ""


_FILE = Path("instance", "facts.json")


def hand_over(facts: Mapping[str, str], directory: Path) -> Path | None:
    """Write facts to a file for Puppet; return the file, or `None` without facts.

    Without facts, this removes the file of an earlier call.

    Args:
        facts: Values by name.
        directory: A directory of localpuppet, below which the file is.
    """
    path = directory / _FILE
    if not facts:
        remove(path)
        return None
    make_private(path.parent)
    write_json(path, dict(facts))
    return path
