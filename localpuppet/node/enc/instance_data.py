"""Instance data, independent of its source, and the sources that settings can name.

They are in a module without readers, because all commands read the settings.
"""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.value import Value

MAX_USER_DATA = 1024 * 1024
# The first line of user data that is an input.
INPUT_MARK = b"#localpuppet-input"
_ID = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}\Z"


def parse_instance_id(text: str) -> str:
    """Return an instance's id: up to 255 letters, digits and `._:-`."""
    if not re.match(_ID, text):
        raise InvalidInputError("is not an instance id")
    return text


class InstanceData(JsonRecord):
    """The cloud's data about this machine, from `cloud-init` or a metadata service."""

    source: str
    instance_id: Annotated[str, parse_instance_id]
    user_data: bytes

    @property
    def is_input(self) -> bool:
        """Whether the user data is an input for this node."""
        return self.user_data.partition(b"\n")[0].rstrip() == INPUT_MARK


class Service(StrEnum):
    """A metadata service that settings can name."""

    EC2 = "ec2"
    OPENSTACK = "openstack"
    CLOUDSTACK = "cloudstack"


class CloudInitFiles(Value):
    """The directories of cloud-init, named as in its own settings; `cloud_dir` outlives a boot."""

    run_dir: Path
    cloud_dir: Path
