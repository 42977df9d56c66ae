"""A server that a node exports: what it is for and where, as the node's entry says it.

Owns: the fields, their strict reading, and the facts that a query gets. Refuses to know: catalogs.

- A server is its node: `fqdn` and `hostname` of what a query gets are those of who signed.
- What it is for, and its address, are claims: see `claims`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import parse_line
from localpuppet.base.formats.values import Json

MAX_SERVERS = 64
MAX_PORTS = 64
Port = int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedServer:
    """One server.

    Attributes:
        role: What it is for.
        ipaddress: Where it is reached; `None` where the node does not say.
        ports: The ports that it listens on; at most `MAX_PORTS`.
        since: When its node exported it first: seconds since 1970, UTC.
    """

    role: str
    ipaddress: str | None
    ports: tuple[Port, ...]
    since: float

    @classmethod
    def parse(cls, fields: Fields) -> "ExportedServer":
        """Return the server.

        Raises:
            InvalidInputError: A field is missing, or not what it must be.
        """
        address = fields.text_or_none("ipaddress")
        return cls(
            role=parse_line(fields.text("role"), what="role"),
            ipaddress=None if address is None else parse_line(address, what="address"),
            ports=ports_of(fields.values("ports")),
            since=fields.number("since"),
        )

    @classmethod
    def parse_again(cls, raw: Mapping[str, Json]) -> "ExportedServer":
        """Return a server that `parse` has taken before.

        Raises:
            InvalidInputError: It was damaged since.
        """
        return cls.parse(Fields(raw, where="server"))

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {
            "role": self.role,
            "ipaddress": self.ipaddress,
            "ports": list(self.ports),
            "since": self.since,
        }

    def facts(self, node: NodeName) -> dict[str, Json]:
        """Return what a query gets of it.

        Args:
            node: Whose it is.
        """
        return {
            "role": self.role,
            "fqdn": str(node),
            "hostname": node.partition(".")[0],
            "ipaddress": self.ipaddress,
            "ports": list(self.ports),
        }


def ports_of(value: Json) -> tuple[Port, ...]:
    """Return ports: one, or a list of them; none for nothing.

    Raises:
        InvalidInputError: There are too many, or one is neither a number nor a text.
    """
    listed = value if isinstance(value, list) else [] if value is None else [value]
    found: list[Port] = []
    for one in listed:
        if isinstance(one, bool) or not isinstance(one, int | str):
            raise InvalidInputError("a port is neither a number nor a text", where="ports")
        found.append(one if isinstance(one, int) else parse_line(one, what="port"))
    if len(found) > MAX_PORTS:
        raise InvalidInputError(f"has more than {MAX_PORTS} ports", where="ports")
    return tuple(found)
