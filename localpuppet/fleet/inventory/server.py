"""A server that a node exports: its role and address in the node's entry.

- A server has the name of its node: queries return the signer's name as `fqdn` and `hostname`.
- Role and address are claims: see `claims`.
"""

from dataclasses import dataclass

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import parse_line
from localpuppet.base.formats.values import Json, field_values

MAX_SERVERS = 64
MAX_PORTS = 64
Port = int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedServer:
    """One server.

    Attributes:
        role: Its role.
        ipaddress: Its address; `None` if the node publishes none.
        ports: The ports that it listens on, at most `MAX_PORTS`.
        since: When its node first exported it, in seconds since 1970, UTC.
    """

    role: str
    ipaddress: str | None
    ports: tuple[Port, ...]
    since: float

    @classmethod
    def parse(cls, fields: Fields) -> "ExportedServer":
        """Read the server.

        Raises:
            InvalidInputError: A field is missing or invalid.
        """
        address = fields.text_or_none("ipaddress")
        return cls(
            role=parse_line(fields.text("role"), what="role"),
            ipaddress=None if address is None else parse_line(address, what="address"),
            ports=ports_of(fields.values("ports")),
            since=fields.number("since"),
        )

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return field_values(self)

    def facts(self, node: NodeName) -> dict[str, Json]:
        """Return the facts of the server that a query receives.

        Args:
            node: The node of the server.
        """
        return {
            "role": self.role,
            "fqdn": str(node),
            "hostname": node.partition(".")[0],
            "ipaddress": self.ipaddress,
            "ports": list(self.ports),
        }


def ports_of(value: Json) -> tuple[Port, ...]:
    """Return ports from one value, a list, or null.

    Raises:
        InvalidInputError: There are too many, or one is neither a number nor a text.
    """
    listed = value if isinstance(value, list) else [] if value is None else [value]
    ports: list[Port] = []
    for number in listed:
        if isinstance(number, bool) or not isinstance(number, int | str):
            raise InvalidInputError("a port is neither a number nor a text", where="ports")
        ports.append(number if isinstance(number, int) else parse_line(number, what="port"))
    if len(ports) > MAX_PORTS:
        raise InvalidInputError(f"has more than {MAX_PORTS} ports", where="ports")
    return tuple(ports)
