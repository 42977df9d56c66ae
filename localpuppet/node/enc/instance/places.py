"""The sources of instance data that settings can name.

They are in a module without readers, because all commands read the settings.
"""

from enum import StrEnum
from pathlib import Path

from localpuppet.base.value import Value


class Service(StrEnum):
    """A metadata service that settings can name."""

    EC2 = "ec2"
    OPENSTACK = "openstack"
    CLOUDSTACK = "cloudstack"


class CloudInitFiles(Value):
    """The directories of cloud-init, named as in cloud-init's own settings.

    Attributes:
        run_dir: Data of this boot.
        cloud_dir: Data that outlives a boot.
    """

    run_dir: Path
    cloud_dir: Path
