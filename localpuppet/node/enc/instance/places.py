"""Where instance data can come from: what a site's settings name.

Apart from what reads it there, because every verb reads the settings.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Service(StrEnum):
    """A metadata service that a site can name."""

    EC2 = "ec2"
    OPENSTACK = "openstack"
    CLOUDSTACK = "cloudstack"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudInitFiles:
    """Where cloud-init keeps what it knows; the names are those of its own settings.

    Attributes:
        run_dir: What is of this boot.
        cloud_dir: What is kept.
    """

    run_dir: Path
    cloud_dir: Path
