"""Names of facts that instance data never sets: Facter's and Puppet's own.

A fact that Facter does not find on this machine (`ec2_metadata` elsewhere, `mtu_eth9` without that
card) is also Facter's: code that reads it trusts Facter. So the list has the names of all systems
that Facter supports, with its legacy facts (`Facter::Config::FACT_GROUPS` and `FACT_NAME`,
`ALIASES` of `lib/facter/facts/` in Facter 4.3).
"""

import re
from fnmatch import translate
from functools import cache

from localpuppet.base.formats.names import RESERVED_PARAMETERS

_FACTER = """
aio_agent_build aio_agent_version architecture augeas augeasversion az_metadata bios_*
blockdevice_* blockdevices board* chassis* cloud dhcp_servers disks dmi domain ec2_* facterversion
filesystems fips_enabled fqdn gce gid hardwareisa hardwaremodel hostname hypervisors id identity
interfaces ipaddress ipaddress6 ipaddress6_* ipaddress_* is_virtual kernel kernelmajversion
kernelrelease kernelversion ldom ldom_* load_averages lsb* macaddress macaddress_* macosx_*
manufacturer memory memoryfree* memorysize* mountpoints mtu_* netmask netmask6 netmask6_* netmask_*
network network6 network6_* network_* networking nim_type operatingsystem*
os osfamily partitions path physicalprocessorcount processor processor[0-9]* processorcount
processors productname productversion ps ruby rubyplatform rubysitedir rubyversion scope6 scope6_*
selinux selinux_* serialnumber solaris_zones sp_* ssh ssh*key sshfp_* swap* system32 system_profiler
system_uptime timezone uptime uptime_* uuid virtual windows_* xen xendomains zfs_* zone_* zonename
zones zpool_*
"""
_PUPPET = (*RESERVED_PARAMETERS, "certname", "pe_*", "puppetversion")


def is_own_fact(name: str) -> bool:
    """Return whether a fact's name, in lower case, is reserved for Facter or Puppet."""
    return _own().match(name) is not None


@cache
def _own() -> re.Pattern[str]:
    return re.compile("|".join(map(translate, (*_FACTER.split(), *_PUPPET))))
