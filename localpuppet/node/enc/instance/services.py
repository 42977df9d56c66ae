"""Asks a metadata service for an instance's id and its user data.

- EC2 is asked with a token of IMDSv2 and never without one: an attacker who makes this machine
  fetch a URL gets no token, and so no data.
- EC2 and OpenStack have one link-local address, which no setting changes. CloudStack's service is
  the DHCP server of this machine's lease, and is asked from the lease's address.
- A missing document (404) means "none" only if "none" is a valid answer: for user data.
"""

from collections.abc import Callable, Mapping
from ipaddress import IPv4Address
from typing import Protocol, TypeVar

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.value import Value
from localpuppet.node.enc.instance.data import MAX_USER_DATA, InstanceData, parse_instance_id
from localpuppet.node.enc.instance.lease import DhcpLease
from localpuppet.node.enc.instance.places import Service

LINK_LOCAL = IPv4Address("169.254.169.254")
MAX_TEXT = 4096
MAX_METADATA = 256 * 1024
# The token is needed once a boot, as the service is.
TOKEN_SECONDS = "60"  # noqa: S105 - a lifetime
HINT = "is this machine in that cloud? see 'instance_data' in localpuppet.yaml"

T = TypeVar("T")


class MetadataServer(Value):
    """The address of a metadata service.

    Attributes:
        address: Its address; it listens on port 80.
        source: The address of this machine to ask from; `None` for any.
    """

    address: IPv4Address
    source: IPv4Address | None


class Metadata(Protocol):
    """A metadata service."""

    def ask(
        self,
        path: str,
        *,
        limit: int,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
    ) -> bytes | None:
        """Return the body, at most `limit` bytes; `None` if the service lacks the document.

        Raises:
            UnavailableError: The service does not answer in time, or not properly.
        """


def server_of(service: Service, newest_lease: Callable[[], DhcpLease | None]) -> MetadataServer:
    """Return the address of a service.

    Raises:
        InvalidInputError: A lease file is refused.
        UnavailableError: The service is CloudStack's, and this machine has no lease.
    """
    if service is not Service.CLOUDSTACK:
        return MetadataServer(address=LINK_LOCAL, source=None)
    lease = newest_lease()
    if lease is None:
        raise UnavailableError(
            "this machine has no DHCP lease that names the service's address",
            where=str(service),
            hint=HINT,
        )
    return MetadataServer(address=lease.server, source=lease.address)


def ask_service(service: Service, metadata: Metadata) -> InstanceData:
    """Return a service's data about this machine.

    Raises:
        UnavailableError: The service does not answer, or its answer is malformed.
    """
    ask = {Service.EC2: _ec2, Service.OPENSTACK: _openstack, Service.CLOUDSTACK: _cloudstack}
    instance_id, user_data = ask[service](metadata)
    return InstanceData(source=service, instance_id=instance_id, user_data=user_data or b"")


def _ec2(metadata: Metadata) -> tuple[str, bytes | None]:
    asked_for = {"X-aws-ec2-metadata-token-ttl-seconds": TOKEN_SECONDS}
    path = "/latest/api/token"
    answer = metadata.ask(path, method="PUT", headers=asked_for, limit=MAX_TEXT)
    shown = {"X-aws-ec2-metadata-token": _read(answer, path, _token)}
    path = "/latest/meta-data/instance-id"
    answer = metadata.ask(path, headers=shown, limit=MAX_TEXT)
    instance_id = _read(answer, path, _instance_id)
    return instance_id, metadata.ask("/latest/user-data", headers=shown, limit=MAX_USER_DATA)


def _openstack(metadata: Metadata) -> tuple[str, bytes | None]:
    path = "/openstack/latest/meta_data.json"
    answer = metadata.ask(path, limit=MAX_METADATA)
    instance_id = _read(answer, path, _uuid)
    return instance_id, metadata.ask("/openstack/latest/user_data", limit=MAX_USER_DATA)


def _cloudstack(metadata: Metadata) -> tuple[str, bytes | None]:
    path = "/latest/instance-id"
    instance_id = _read(metadata.ask(path, limit=MAX_TEXT), path, _instance_id)
    return instance_id, metadata.ask("/latest/user-data", limit=MAX_USER_DATA)


def _read(answer: bytes | None, path: str, parse: Callable[[bytes], T]) -> T:
    """Parse a required answer."""
    if answer is None:
        raise UnavailableError("the metadata service does not have it", where=path, hint=HINT)
    try:
        return parse(answer)
    except InvalidInputError as error:
        raise UnavailableError(
            f"the metadata service sent an invalid answer: {error}", where=path, hint=HINT
        ) from error


def _instance_id(answer: bytes) -> str:
    return parse_instance_id(answer.decode("ascii", "replace").strip())


def _token(answer: bytes) -> str:
    token = answer.decode("ascii", "replace").strip()
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise InvalidInputError("is not a token")
    return token


def _uuid(answer: bytes) -> str:
    fields = Fields.parse(answer, where="meta_data.json", limit=MAX_METADATA)
    return fields.parsed("uuid", parse_instance_id)
