"""This node's instance data: from cloud-init, else from the service in the settings.

`instance-data.json` in cloud-init's run directory is of this boot. The user data is in cloud-init's
directory of that instance, readable by root alone
(https://cloudinit.readthedocs.io/en/latest/explanation/instancedata.html).

- cloud-init's files are read each time: they are of this boot.
- A service is asked once a boot, and its answer kept. A missing answer is an error and never "no
  facts": a manifest that reads `$role` must not see an outage as another role.
- Without cloud-init and a service, there is no instance data, and no request.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.machine.files import is_file, make_private, read_user_file, remove, write_json
from localpuppet.node.enc.instance.data import (
    INPUT_MARK,
    MAX_USER_DATA,
    CloudInitFiles,
    InstanceData,
    Service,
    parse_instance_id,
)
from localpuppet.node.enc.instance.facts import facts_of

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


SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class InstanceSource:
    """The instance data of this node.

    Attributes:
        files: The directories of cloud-init; `None` to ignore cloud-init.
        service: The metadata service; `None` for none.
        ask: Asks a service.
        memory: The file that keeps a service's answer.
        boot_id: Returns the kernel's id of this boot.
    """

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
            StateError: The answer cannot be stored.
        """
        instance_data = None if self.files is None else read_cloud_init(self.files)
        if instance_data is not None or self.service is None:
            return instance_data
        boot_id = self.boot_id()
        kept = self._kept(self.service, boot_id)
        if kept is not None:
            return kept
        answer = self.ask(self.service)
        make_private(self.memory.parent)
        write_json(self.memory, {"schema": SCHEMA, "boot_id": boot_id, "data": answer.to_dict()})
        return answer

    def facts(self) -> Mapping[str, str]:
        """Return the facts in the instance data, by name; none without instance data."""
        return {} if self.data is None else facts_of(self.data).facts

    def input(self) -> bytes:
        """Return the user data, if it is an input.

        Raises:
            InvalidInputError: There is no user data, or it is not an input.
        """
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
            kept = read_json(self.memory)
            fields = Fields(kept, where=str(self.memory))
            fields.schema(SCHEMA)
            data = InstanceData.from_dict(fields.mapping("data"), where=str(self.memory))
            same = fields.text("boot_id") == boot_id and data.source == service
        except (FileNotFoundError, StateError, InvalidInputError):
            return None  # missing, damaged, or of another version: the service is asked again
        return data if same else None
