"""Asks a metadata service for an instance's id and its user data.

- EC2 is asked with a token of IMDSv2 and never without one: who made this machine fetch a URL
  for him gets no token, and so nothing.
- EC2 and OpenStack are at one link-local address, which no setting changes. CloudStack is at the
  server that gave this machine its lease, and is asked from the address that the lease gave.
- What is not there (404) is nothing only where nothing is a right answer: no user data.

Owns: what is asked, in which order. Refuses to know: sockets, what becomes of the answers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Protocol, TypeVar

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.fields import Fields
from localpuppet.node.enc.instance.data import (
    MAX_USER_DATA,
    InstanceData,
    parse_instance_id,
)
from localpuppet.node.enc.instance.lease import DhcpLease
from localpuppet.node.enc.instance.places import Service

LINK_LOCAL = IPv4Address("169.254.169.254")
MAX_TEXT = 4096
MAX_METADATA = 256 * 1024
# The token is asked for again when the service is: once a boot.
TOKEN_SECONDS = "60"  # noqa: S105 - a lifetime
HINT = "is this machine in that cloud? see 'instance_data' in localpuppet.yaml"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataServer:
    """Where a metadata service is.

    Attributes:
        address: Its address; it listens on port 80.
        source: The address of this machine to ask from; `None` for whichever fits.
    """

    address: IPv4Address
    source: IPv4Address | None


class Metadata(Protocol):
    """A metadata service that can be asked."""

    def ask(
        self,
        path: str,
        *,
        limit: int,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
    ) -> bytes | None:
        """Return the body, at most `limit` bytes; `None` where the service has no such thing.

        Raises:
            UnavailableError: The service does not answer in time, or not properly.
        """
        ...


def server_of(service: Service, newest_lease: Callable[[], DhcpLease | None]) -> MetadataServer:
    """Return where a service is.

    Raises:
        InvalidInputError: A file with leases is refused.
        UnavailableError: CloudStack is meant, and this machine has no lease.
    """
    if service is not Service.CLOUDSTACK:
        return MetadataServer(address=LINK_LOCAL, source=None)
    lease = newest_lease()
    if lease is None:
        raise UnavailableError(
            "this machine has no DHCP lease, which would say where the service is",
            where=str(service),
            hint=HINT,
        )
    return MetadataServer(address=lease.server, source=lease.address)


def ask_service(service: Service, metadata: Metadata) -> InstanceData:
    """Return what a service says of this machine.

    Raises:
        UnavailableError: The service does not answer, or its answer is not what was asked for.
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
    """Return what `parse` makes of an answer that must be there."""
    if answer is None:
        raise UnavailableError("the metadata service does not have it", where=path, hint=HINT)
    try:
        return parse(answer)
    except InvalidInputError as error:
        raise UnavailableError(
            f"the metadata service answered rubbish: {error}", where=path, hint=HINT
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
