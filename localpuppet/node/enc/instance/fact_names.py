"""Names of facts of Facter and Puppet: instance data never sets them, and some are legacy.

A fact that Facter does not find on this machine (`ec2_metadata` elsewhere, `mtu_eth9` without that
card) is also Facter's: code that reads it trusts Facter. So the list has the names of all systems
that Facter supports, with its legacy facts (`Facter::Config::FACT_GROUPS` and `FACT_NAME`,
`ALIASES` of `lib/facter/facts/` in Facter 4.3).
"""

import re
from fnmatch import translate
from functools import cache

from localpuppet.base.formats.names import RESERVED_PARAMETERS

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
_PUPPET = (*RESERVED_PARAMETERS, "certname", "pe_*", "puppetversion")


def is_own_fact(name: str) -> bool:
    """Return whether a fact's name, in lower case, is reserved for Facter or Puppet."""
    return _own().match(name) is not None


def is_legacy_fact(name: str) -> bool:
    """Return whether a fact's name is one that Facter hides unless it is asked for legacy facts."""
    return _legacy().match(name) is not None


@cache
def _own() -> re.Pattern[str]:
    return _pattern(*_STRUCTURED.split(), *_LEGACY.split(), *_PUPPET)


@cache
def _legacy() -> re.Pattern[str]:
    return _pattern(*_LEGACY.split())


def _pattern(*names: str) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, names)))
