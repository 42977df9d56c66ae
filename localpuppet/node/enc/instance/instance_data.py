"""Instance data, independent of its source, and the sources that settings can name.

They are in a module without readers, because all commands read the settings.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.values import Json, field_values
from localpuppet.base.value import Value

MAX_USER_DATA = 1024 * 1024
# The first line of user data that is an input.
INPUT_MARK = b"#localpuppet-input"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}\Z")


class InstanceData(Value):
    """The cloud's data about this machine.

    Attributes:
        source: `cloud-init`, or the name of a metadata service.
        instance_id: The machine's name in its cloud.
        user_data: The data that the user passed when starting the machine; may be empty.
    """

    source: str
    instance_id: str
    user_data: bytes

    @property
    def is_input(self) -> bool:
        """Whether the user data is an input for this node."""
        return self.user_data.partition(b"\n")[0].rstrip() == INPUT_MARK

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json], *, where: str) -> "InstanceData":
        """Return the instance data in JSON form.

        Raises:
            InvalidInputError: The fields are not those of instance data.
        """
        fields = Fields(raw, where=where)
        try:
            user_data = base64.b64decode(fields.text("user_data"), validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidInputError("is not base64", where=f"{where}.user_data") from error
        return cls(
            source=fields.text("source"),
            instance_id=fields.parsed("instance_id", parse_instance_id),
            user_data=user_data,
        )

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        user_data = base64.b64encode(self.user_data).decode("ascii")
        return {**field_values(self), "user_data": user_data}


def parse_instance_id(text: str) -> str:
    """Return an instance's id: up to 255 letters, digits and `._:-`."""
    if not _ID.match(text):
        raise InvalidInputError("is not an instance id")
    return text


class Service(StrEnum):
    """A metadata service that settings can name."""

    EC2 = "ec2"
    OPENSTACK = "openstack"
    CLOUDSTACK = "cloudstack"


class CloudInitFiles(Value):
    """The directories of cloud-init, named as in cloud-init's own settings.

    Attributes:
        cloud_dir: Data that outlives a boot.
    """

    run_dir: Path
    cloud_dir: Path
