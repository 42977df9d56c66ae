"""`instance_data:` in `localpuppet.yaml`: where facts from the cloud come from.

instance_data:
  service: ec2                     # or openstack, cloudstack; without it none is asked
  cloud_init: false                # or {run_dir: /run/cloud-init, cloud_dir: /var/lib/cloud}
  leases: [/var/lib/dhcp]          # where CloudStack's DHCP lease is
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpuppet.node.enc.instance.places import CloudInitFiles, Service

RUN_DIR = "/run/cloud-init"
CLOUD_DIR = "/var/lib/cloud"
LEASES = (
    "/var/lib/dhcp",
    "/var/lib/dhclient",
    "/var/lib/dhcp3",
    "/run/systemd/netif/leases",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSettings:
    """The sources of facts from the cloud.

    Attributes:
        service: The metadata service, or `None`.
        files: The directories of cloud-init; `None` to ignore cloud-init.
        asked_for: Whether the site sets these directories itself.
        leases: The directories of DHCP leases.
    """

    service: Service | None
    files: CloudInitFiles | None
    asked_for: bool
    leases: tuple[Path, ...]


def instance_settings(raw: Mapping[str, Any], root: Path) -> InstanceSettings:
    """Return the section `instance_data:`."""
    body = raw.get("instance_data", {})
    places = body.get("cloud_init", {})
    files = CloudInitFiles(
        run_dir=root / (places or {}).get("run_dir", RUN_DIR),
        cloud_dir=root / (places or {}).get("cloud_dir", CLOUD_DIR),
    )
    return InstanceSettings(
        service=Service(body["service"]) if "service" in body else None,
        files=None if places is False else files,
        asked_for=bool(places),
        leases=tuple(root / entry for entry in body.get("leases", LEASES)),
    )
