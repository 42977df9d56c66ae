"""Reads the instance data that cloud-init found, in whichever cloud this machine is.

`instance-data.json` in cloud-init's run directory is of this boot. The user data is in cloud-init's
directory of that instance, readable by root alone
(https://cloudinit.readthedocs.io/en/latest/explanation/instancedata.html).
"""

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.machine.files import is_file, read_user_file
from localpuppet.node.enc.instance.data import MAX_USER_DATA, InstanceData, parse_instance_id
from localpuppet.node.enc.instance.places import CloudInitFiles

SOURCE = "cloud-init"
MAX_INSTANCE_DATA = 4 * 1024 * 1024
HINT = "set 'instance_data: {cloud_init: false}' in localpuppet.yaml to do without it"
# cloud-init's name of the cloud if it found none.
_NO_CLOUD = "none"


def read_cloud_init(files: CloudInitFiles) -> InstanceData | None:
    """Return cloud-init's instance data; `None` if it did not run or found no cloud.

    Raises:
        InvalidInputError: A file is refused.
        UnavailableError: cloud-init has not found the data yet.
    """
    path = files.run_dir / "instance-data.json"
    if not is_file(path):
        return None
    try:
        data = read_user_file(path, limit=MAX_INSTANCE_DATA)
        fields = Fields.parse(data, where=str(path), limit=MAX_INSTANCE_DATA).inner("v1")
        if fields.text_or_none("cloud_id") == _NO_CLOUD:
            return None
        instance_id = fields.parsed("instance_id", parse_instance_id)
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
