"""This node's instance data, and the facts in it: which names they may have, how Puppet gets them.

- cloud-init's files are read each time: they are of this boot. `instance-data.json` is in its run
  directory, the user data in its directory of the instance, readable by root alone
  (https://cloudinit.readthedocs.io/en/latest/explanation/instancedata.html).
- A service is asked once a boot, and its answer kept. A missing answer is an error and never "no
  facts": a manifest that reads `$role` must not see an outage as another role.
- Without cloud-init and a service, there is no instance data, and no request.
- `instance_id` is a fact.
- A line `key=value` of the user data is a fact. Comment signs before the key are ignored, so that a
  line of a script may be a fact: `#role=web`. The key begins the line and is a name. If a key
  occurs several times, the last line wins, as in a shell. Other lines are ignored.
- User data never sets Facter's own facts, Puppet's, or a second `instance_id`.
- User data that is an input, or that is not text, has no such lines.
- A fact that Facter does not find on this machine (`ec2_metadata` elsewhere, `mtu_eth9` without
  that card) is also Facter's: code that reads it trusts Facter. So the list has the names of all
  systems that Facter supports, with its legacy facts (`Facter::Config::FACT_GROUPS` and
  `FACT_NAME`, `ALIASES` of `lib/facter/facts/` in Facter 4.3).
- The facts are neither in the environment, which Puppet's child processes inherit, nor on a command
  line, which all users can read: user data often holds secrets. localpuppet's Ruby code reads the
  file: `modules/localpuppet/localpuppet/lib/facter/localpuppet_instance.rb`.

Example: `facts_of(data).facts == {"instance_id": "i-0a1b", "role": "web"}`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, ClassVar

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.base.formats.converter import JsonRecord, Message
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.names import RESERVED_PARAMETERS
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.base.machine.files import is_file, make_private, read_user_file, remove, write_json
from localpuppet.base.value import Value
from localpuppet.node.enc.instance_data import (
    INPUT_MARK,
    MAX_USER_DATA,
    CloudInitFiles,
    InstanceData,
    Service,
    parse_instance_id,
)

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
_LINE = re.compile(r"^(?:#+[ \t]*)?([A-Za-z][A-Za-z0-9_]{0,63})[ \t]*=(.*)", re.MULTILINE)


class InstanceFacts(Value):
    """The facts in instance data; `left_out` has the reasons for refused ones, in a few words."""

    facts: Mapping[str, str]
    left_out: Mapping[str, str]


def facts_of(data: InstanceData) -> InstanceFacts:
    facts = {INSTANCE_ID: data.instance_id}
    left_out: dict[str, str] = {}
    for name, value in _lines(data).items():
        if problem := _problem(name, value, len(facts)):
            left_out[name] = problem
        else:
            facts[name] = value
    return InstanceFacts(facts=facts, left_out=left_out)


def withheld(names: Iterable[str]) -> frozenset[str]:
    """Return which facts from instance data leave the node only if the settings name them.

    User data often holds secrets; the role is meant for publishing.
    """
    return frozenset(names) - _PUBLISHED


def _lines(data: InstanceData) -> dict[str, str]:
    if data.is_input:
        return {}
    try:
        text = data.user_data.decode("utf-8")
    except UnicodeDecodeError:
        return {}
    return {match[1].lower(): match[2].strip() for match in _LINE.finditer(text)}


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


def write_facts(facts: Mapping[str, str], directory: Path) -> Path | None:
    """Write facts to a file for Puppet below a directory of localpuppet; return the file.

    Without facts, remove the file of an earlier call, and return `None`.
    """
    path = directory / _FILE
    if not facts:
        remove(path)
        return None
    make_private(path.parent)
    write_json(path, dict(facts))
    return path


SOURCE = "cloud-init"
MAX_INSTANCE_DATA = 4 * 1024 * 1024
HINT = "set 'instance_data: {cloud_init: false}' in localpuppet.yaml to do without it"
# cloud-init's name of the cloud if it found none.
_NO_CLOUD = "none"


class _Cloud(Message):
    IS_OPEN = True
    cloud_id: str | None = None
    instance_id: Annotated[str, parse_instance_id]


class _CloudInit(Message):
    IS_OPEN = True
    v1: _Cloud


def read_cloud_init(files: CloudInitFiles) -> InstanceData | None:
    """Return cloud-init's instance data; `None` if it did not run or found no cloud."""
    path = files.run_dir / "instance-data.json"
    if not is_file(path):
        return None
    try:
        data = read_user_file(path, limit=MAX_INSTANCE_DATA)
        raw = parse_object(data, where=str(path), limit=MAX_INSTANCE_DATA)
        cloud = _CloudInit.read(raw, where=str(path)).v1
        if cloud.cloud_id == _NO_CLOUD:
            return None
        instance_id = cloud.instance_id
        user_data = files.cloud_dir / "instances" / instance_id / "user-data.txt"
        if not is_file(user_data):
            raise UnavailableError(
                "is not there yet",
                where=str(user_data),
                hint="'cloud-init status --wait' waits for cloud-init",
            )
        return InstanceData(
            source=SOURCE,
            instance_id=instance_id,
            user_data=read_user_file(user_data, limit=MAX_USER_DATA),
        )
    except InvalidInputError as error:
        raise InvalidInputError(error.what, where=error.where, hint=error.hint or HINT) from error


class _KeptAnswer(JsonRecord):
    SCHEMA: ClassVar = 1
    boot_id: str
    data: InstanceData


@dataclass(frozen=True, kw_only=True)
class InstanceSource:
    """The instance data of this node; the file `memory` keeps a service's answer."""

    files: CloudInitFiles | None
    service: Service | None
    ask: Callable[[Service], InstanceData]
    memory: Path
    boot_id: Callable[[], str]

    @cached_property
    def data(self) -> InstanceData | None:
        """The instance data; `None` if this node has none.

        Raises:
            InvalidInputError: A file of cloud-init or of a DHCP client is refused.
            UnavailableError: The service does not answer, or cloud-init has not found the data yet.
        """
        instance_data = None if self.files is None else read_cloud_init(self.files)
        if instance_data is not None or self.service is None:
            return instance_data
        boot_id = self.boot_id()
        if (kept := self._kept(self.service, boot_id)) is not None:
            return kept
        answer = self.ask(self.service)
        make_private(self.memory.parent)
        write_json(self.memory, _KeptAnswer(boot_id=boot_id, data=answer).to_dict())
        return answer

    def facts(self) -> Mapping[str, str]:
        """Return the facts in the instance data, by name; none without instance data."""
        return {} if self.data is None else facts_of(self.data).facts

    def input(self) -> bytes:
        """Return the user data, if it is an input."""
        if self.data is None:
            raise InvalidInputError(
                "this node has no user data: cloud-init did not run here, and no service is set",
                where="user data",
                hint="instance_data: {service: ec2} in localpuppet.yaml",
            )
        if not self.data.is_input:
            raise InvalidInputError(
                "is not an input",
                where="user data",
                hint=f"its first line must be {INPUT_MARK.decode()}",
            )
        return self.data.user_data

    def forget(self) -> None:
        """Delete the service's answer, so that the next call asks again."""
        remove(self.memory)

    def _kept(self, service: Service, boot_id: str) -> InstanceData | None:
        """Return the service's stored answer of this boot; `None` without one."""
        try:
            kept = _KeptAnswer.from_dict(read_json(self.memory))
        except (FileNotFoundError, StateError):
            return None  # missing, damaged, or of another version: the service is asked again
        is_same = kept.boot_id == boot_id and kept.data.source == service
        return kept.data if is_same else None
