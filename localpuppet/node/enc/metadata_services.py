"""Metadata services: an instance's id and its user data.

- EC2 is asked with a token of IMDSv2 and never without one: an attacker who makes this machine
  fetch a URL gets no token, and so no data.
- EC2 and OpenStack have one link-local address, which no setting changes.
- CloudStack's service is the virtual router that granted this machine's DHCP lease, and is asked
  from the lease's address. A router outside of the lease's own subnet is refused, so that a forged
  DHCP reply cannot make this node talk to any machine.
- Leases are read in dhclient's format (dhclient.leases(5); of several leases in one file the last
  counts) and in that of systemd-networkd, `KEY=VALUE`.
- A missing document (404) means "none" only if "none" is a valid answer: for user data.
- The client resolves no name, uses no proxy and follows no redirect: only the intended address can
  answer.
"""

import os
import pwd
import re
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, TypeVar

from localpuppet.base import http
from localpuppet.base.errors import InvalidInputError, UnavailableError, errors_at
from localpuppet.base.formats.converter import Message
from localpuppet.base.machine.files import input_errors, read_user_file
from localpuppet.base.value import Value
from localpuppet.node.enc.instance_data import (
    MAX_USER_DATA,
    InstanceData,
    Service,
    parse_instance_id,
)

# A subnet wider than 10.0.0.0/8 would admit almost any server.
MIN_PREFIX = 8
_DHCLIENT = re.compile(r"^lease \{", re.MULTILINE)
# The address, the mask and the server: of dhclient, and of networkd.
_FORMS = (
    (
        r"^ *fixed-address {};$",
        r"^ *option subnet-mask {};$",
        r"^ *option dhcp-server-identifier {};$",
    ),
    (r"^ADDRESS={}$", r"^NETMASK={}$", r"^SERVER_ADDRESS={}$"),
)
_QUAD = r"([0-9.]{7,15})"


class MetadataServer(Value):
    """The address of a metadata service, on port 80, and that of this machine to ask from."""

    address: IPv4Address
    source: IPv4Address | None


def parse_lease(text: str) -> MetadataServer | None:
    """Return the DHCP server, and this machine's address, in a client's file of leases."""
    starts = [match.start() for match in _DHCLIENT.finditer(text)]
    newest = text[starts[-1] :] if starts else text
    patterns = (pattern.replace("{}", _QUAD) for pattern in _FORMS[0 if starts else 1])
    matches = [re.search(pattern, newest, re.MULTILINE) for pattern in patterns]
    address, mask, server = (match and match[1] for match in matches)
    if not (address and mask and server):
        return None
    try:
        own, other = IPv4Address(address), IPv4Address(server)
        subnet = IPv4Network(f"{address}/{mask}", strict=False)
    except ValueError as error:
        raise InvalidInputError("has a malformed address") from error
    if (
        subnet.prefixlen < MIN_PREFIX
        or other not in subnet
        or other in (own, subnet.network_address, subnet.broadcast_address)
        or other.is_loopback
        or other.is_multicast
    ):
        raise InvalidInputError("the DHCP server is not on the lease's own subnet")
    return MetadataServer(address=other, source=own)


LINK_LOCAL = IPv4Address("169.254.169.254")
MAX_TEXT = 4096
MAX_METADATA = 256 * 1024
# The token is needed once a boot, as the service is.
TOKEN_SECONDS = "60"  # noqa: S105 - a lifetime
HINT = "is this machine in that cloud? see 'instance_data' in localpuppet.yaml"

T = TypeVar("T")


def server_of(
    service: Service, newest_lease: Callable[[], MetadataServer | None]
) -> MetadataServer:
    if service is not Service.CLOUDSTACK:
        return MetadataServer(address=LINK_LOCAL, source=None)
    if (lease := newest_lease()) is None:
        raise UnavailableError(
            "this machine has no DHCP lease that names the service's address",
            where=str(service),
            hint=HINT,
        )
    return lease


def ask_service(service: Service, metadata: "MetadataClient") -> InstanceData:
    """Return a service's data about this machine."""
    ask = {Service.EC2: _ec2, Service.OPENSTACK: _openstack, Service.CLOUDSTACK: _cloudstack}
    instance_id, user_data = ask[service](metadata)
    return InstanceData(source=service, instance_id=instance_id, user_data=user_data or b"")


def _ec2(metadata: "MetadataClient") -> tuple[str, bytes | None]:
    asked_for = {"X-aws-ec2-metadata-token-ttl-seconds": TOKEN_SECONDS}
    token = _need(metadata, "/latest/api/token", _token, method="PUT", headers=asked_for)
    shown = {"X-aws-ec2-metadata-token": token}
    instance_id = _need(metadata, "/latest/meta-data/instance-id", _instance_id, headers=shown)
    return instance_id, metadata.ask("/latest/user-data", headers=shown, limit=MAX_USER_DATA)


def _openstack(metadata: "MetadataClient") -> tuple[str, bytes | None]:
    path = "/openstack/latest/meta_data.json"
    data = _need(metadata, path, _OpenStackData.parse, limit=MAX_METADATA)
    return data.uuid, metadata.ask("/openstack/latest/user_data", limit=MAX_USER_DATA)


def _cloudstack(metadata: "MetadataClient") -> tuple[str, bytes | None]:
    instance_id = _need(metadata, "/latest/instance-id", _instance_id)
    return instance_id, metadata.ask("/latest/user-data", limit=MAX_USER_DATA)


def _need(
    metadata: "MetadataClient",
    path: str,
    parse: Callable[[bytes], T],
    *,
    limit: int = MAX_TEXT,
    method: str = "GET",
    headers: Mapping[str, str] = MappingProxyType({}),
) -> T:
    """Return a document that must exist, parsed."""
    if (answer := metadata.ask(path, limit=limit, method=method, headers=headers)) is None:
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


class _OpenStackData(Message):
    WHERE, LIMIT, IS_OPEN = "meta_data.json", MAX_METADATA, True
    uuid: Annotated[str, parse_instance_id]


TIMEOUT = 1.0
PORT = 80


class MetadataClient:
    """A client of one metadata service; `timeout` is for one request, to its last byte."""

    def __init__(
        self, server: MetadataServer, *, port: int = PORT, timeout: float = TIMEOUT
    ) -> None:
        self._server = server
        self._port = port
        self._timeout = timeout
        source = "" if server.source is None else str(server.source)
        self._client = http.HttpClient(http.HttpRoute(proxy=http.DIRECT, plain=True, source=source))

    def ask(
        self,
        path: str,
        *,
        limit: int,
        method: str = "GET",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> bytes | None:
        """Return the body at `path`; `None` if the service lacks the document."""
        where = f"http://{self._server.address}{path}"
        url = f"http://{self._server.address}:{self._port}{path}"
        request = http.HttpRequest(url=url, method=method, headers=headers)
        try:
            with self._client.open(request, http.Deadline(self._timeout)) as answer:
                if answer.status == 404:
                    return None
                if answer.status != 200:
                    problem = f"the metadata service answered {answer.status}"
                    raise UnavailableError(problem, where=where, hint=HINT)
                return answer.body(limit)
        except http.HttpError as error:
            raise UnavailableError(
                f"the metadata service cannot be asked: {error}", where=where, hint=HINT
            ) from error


# dhclient's names, as distributions use them; systemd-networkd's, the interface number.
_NAME = re.compile(r"dhclient(?!6).*lease.*|[0-9]{1,9}")
MAX_FILES = 256


def newest_lease(directories: Sequence[Path], *, owners: Collection[int]) -> MetadataServer | None:
    """Return the lease in the newest file; `None` if there are no leases."""
    for path in _files(directories):
        text = read_user_file(path, owners=owners).decode("utf-8", "replace")
        with errors_at(str(path)):
            lease = parse_lease(text)
        if lease is not None:
            return lease
    return None


def _files(directories: Sequence[Path]) -> list[Path]:
    """Return the lease files, the newest first."""
    dated: list[tuple[int, Path]] = []
    for directory in directories:
        with input_errors(directory), suppress(FileNotFoundError), os.scandir(directory) as entries:
            for entry in entries:
                status = entry.stat()
                if _NAME.fullmatch(entry.name) and stat.S_ISREG(status.st_mode):
                    dated.append((status.st_mtime_ns, Path(entry.path)))
    return [path for _, path in sorted(dated, reverse=True)[:MAX_FILES]]


def ask_here(service: Service, leases: Sequence[Path]) -> InstanceData:
    """Ask a metadata service, which may be named in the newest DHCP lease."""
    try:
        owners = [pwd.getpwnam("systemd-network").pw_uid]  # networkd writes its leases
    except KeyError:
        owners = []
    lease = partial(newest_lease, leases, owners=owners)
    return ask_service(service, MetadataClient(server_of(service, lease)))
