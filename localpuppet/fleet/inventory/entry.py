"""An inventory entry: what a node publishes about its last good run, servers and components too.

- A node's own records are read strictly; too many components are an error.
- A server has the name of its node: queries return the signer's name as `fqdn` and `hostname`.
- Role and address are claims: see `admission`.
- An entry is JSON, packed with zlib: at most `MAX_PACKED` bytes on the bus and `MAX_INFLATED` bytes
  unpacked. Nothing larger is unpacked completely. An entry has at most `MAX_VALUES` values, because
  the memory that values need does not depend on their length.
- Each list has its own limit. Unknown fields are ignored, so older nodes can read entries of newer
  ones.
- The digest is over the content: not over time, run and paths, nor over the answers that the
  catalog received. The signer computes it.
- `facts` selects the facts that a node publishes, and `admission` limits what it may claim.

Example: `InventoryEntry.parse(entry.to_payload()) == entry`.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.json_text import canonical
from localpuppet.base.formats.names import ClassName, EnvironmentName, NodeName, RunId
from localpuppet.base.formats.packed import TooMuchError, unpacked
from localpuppet.base.formats.strict_json import loads_again, parse_object
from localpuppet.base.formats.text import parse_line
from localpuppet.base.formats.values import Json, field_values
from localpuppet.node.releases.git.names import parse_object_id

MAX_COMPONENTS = 256
MAX_CAPABILITIES = 64
MAX_NAME = 255
_REFERENCE = re.compile(r"([^:\[]+)[^\[]*(\[.+\])\Z", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeComponent:
    """A part of an application on the node.

    Attributes:
        name: Its reference: `Lamp::Mysql[app1]`.
        application: Its application instance: `Lamp[app1]`.
        produces: The capabilities that other components may consume.
        consumes: The capabilities that it needs.
    """

    name: str
    application: str
    produces: tuple[str, ...]
    consumes: tuple[str, ...]

    @classmethod
    def parse(cls, fields: Fields) -> "NodeComponent":
        """Read the component in an entry, or in a node's own records.

        Raises:
            InvalidInputError: A field is missing, of the wrong type, or too long; or there are too
                many capabilities.
        """
        name = fields.parsed("name", _line)
        return cls(
            name=name,
            application=fields.parsed("application", _line)
            if "application" in fields
            else application_of(name),
            produces=fields.parsed_list("produces", _line, maximum=MAX_CAPABILITIES),
            consumes=fields.parsed_list("consumes", _line, maximum=MAX_CAPABILITIES),
        )

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return field_values(self)


def application_of(name: str) -> str:
    """Return the application in a component's reference: `Lamp[app1]`."""
    reference = _REFERENCE.match(name)
    return name if reference is None else f"{reference[1]}{reference[2]}"


def read_components(noted: Sequence[Fields]) -> tuple[NodeComponent, ...]:
    """Return the components of a catalog, sorted.

    Raises:
        InvalidInputError: A component is invalid, or there are more than an entry may have: a plan
            without the others would be wrong.
    """
    if len(noted) > MAX_COMPONENTS:
        raise InvalidInputError(
            f"has {len(noted)} components; a node publishes at most {MAX_COMPONENTS}",
            where="components of the catalog",
        )
    return tuple(
        sorted(
            map(NodeComponent.parse, noted),
            key=lambda component: (component.application, component.name),
        )
    )


def _line(text: str) -> str:
    parse_line(text, what="name")
    if len(text) > MAX_NAME or text != text.strip():
        raise InvalidInputError(
            f"is not a name: at most {MAX_NAME} characters, no space at its ends"
        )
    return text


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


# The signed bytes; base64 and the signature turn them into up to 512 KiB on the bus.
MAX_PACKED = 360 * 1024
MAX_INFLATED = 4 * 1024 * 1024
MAX_VALUES = 100_000
MAX_ROLES = 64
MAX_CLASSES = 10_000
MAX_KICKS = 256
MAX_QUERIES = 256
MAX_PATHS = 32
# Seconds by which another node's clock may be ahead.
AHEAD = 300.0
# A trigger is rejected after 8 hops; this limits the work for a bad entry.
MAX_STEPS = 18

_WHERE = "inventory entry"
# Fields outside of the digest.
_NOT_DIGESTED = ("schema", "at", "run", "paths", "digest")
SCHEMA = 1
# The class of each catalog, which Puppet leaves out of its list of classes.
MAIN = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogQuery:
    """A query of the node's catalog.

    Attributes:
        text: The query.
        digest: The digest of the answer.
    """

    text: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportsSummary:
    """A summary of what the node exports; the chunks themselves have their own keys.

    Attributes:
        count: The number of resources.
        digest: The digest over the packed bytes; `None` without exports.
        size: The number of packed bytes.
    """

    count: int
    digest: str | None
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSummary:
    """A published catalog; the chunks themselves have their own keys.

    Attributes:
        digest: The digest over the packed bytes.
        size: The number of packed bytes.
        resources: How many resources it has; `None` if the entry does not say it.
    """

    digest: str
    size: int
    resources: int | None = None


NO_EXPORTS = ExportsSummary(count=0, digest=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryEntry:
    """What one node publishes about its last good run.

    Attributes:
        node: The node.
        at: When the run ended by the node's clock, in seconds since 1970, UTC.
        run: The run.
        release: The applied release, `foo/tags/r1`; `None` if the input has none.
        environment: Puppet's environment; `None` if the input has none.
        facts: Facts by name, structured as in Facter.
        roles: The node's roles, at most `MAX_ROLES`.
        classes: The classes in its catalog.
        components: The application parts on it.
        kicks: The roles and queries that its catalog kicks.
        queries: The queries of its catalog.
        exports: What it exports.
        servers: The servers among its exports.
        catalog: Its whole catalog; `None` if the node does not publish it.
        paths: The chains of nodes that led to the run, first cause first; an empty chain if the run
            began on this node. At most `MAX_PATHS`.
        tagged_at: The time in the release's tag, in seconds since 1970; `None` if unknown.
        commit: The commit of that tag as staged; `None` if the release was not staged.
        digest: SHA-256 over the content, hexadecimal; see `digested`.
    """

    node: NodeName
    at: float
    run: RunId
    release: str | None
    environment: EnvironmentName | None
    facts: Mapping[str, Json]
    roles: tuple[str, ...]
    classes: tuple[ClassName, ...] = ()
    components: tuple[NodeComponent, ...] = ()
    kicks: tuple[str, ...] = ()
    queries: tuple[CatalogQuery, ...] = ()
    exports: ExportsSummary = NO_EXPORTS
    paths: tuple[tuple[NodeName, ...], ...] = ()
    servers: tuple[ExportedServer, ...] = ()
    catalog: CatalogSummary | None = None
    tagged_at: int | None = None
    commit: str | None = None
    digest: str = ""

    @classmethod
    def parse(cls, payload: bytes) -> "InventoryEntry":
        """Read the entry in a payload from the bus.

        Args:
            payload: Packed JSON, see `inflate`.

        Raises:
            InvalidInputError: The bytes are not an entry.
        """
        data = inflate(payload)
        return cls.from_dict(
            parse_object(data, where=_WHERE, limit=MAX_INFLATED, values=MAX_VALUES)
        )

    @classmethod
    def parse_again(cls, payload: bytes) -> "InventoryEntry":
        """Read the entry in a payload that `parse` has accepted before, in half the time.

        Raises:
            ValueError: The bytes have changed since.
        """
        try:
            return cls.from_dict(loads_again(inflate(payload)))
        except (TypeError, AttributeError, RecursionError, InvalidInputError) as error:
            raise ValueError(f"not the payload of an entry: {error!r}") from error

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json]) -> "InventoryEntry":
        """Read the JSON form.

        Args:
            raw: The fields; unknown ones are ignored.

        Raises:
            InvalidInputError: A field is missing or invalid, or the entry has another schema
                number.
        """
        fields = Fields(raw, where=_WHERE)
        fields.schema(SCHEMA)
        exports = fields.inner("exports")
        catalog = fields.inner_or_none("catalog")
        return cls(
            node=fields.parsed("node", NodeName.parse),
            at=fields.number("at"),
            run=fields.parsed("run", RunId.parse),
            release=fields.parsed_or_none("release", partial(parse_line, what="release")),
            environment=fields.parsed_or_none("environment", EnvironmentName.parse),
            facts=fields.mapping("facts"),
            roles=fields.parsed_list("roles", parse_role, maximum=MAX_ROLES),
            classes=fields.parsed_list("classes", ClassName.parse, maximum=MAX_CLASSES),
            components=tuple(
                NodeComponent.parse(component)
                for component in fields.inner_list("components", maximum=MAX_COMPONENTS)
            ),
            kicks=fields.parsed_list("kicks", _text, maximum=MAX_KICKS),
            queries=tuple(
                CatalogQuery(text=query.text("text"), digest=query.text("digest"))
                for query in fields.inner_list("queries", maximum=MAX_QUERIES)
            ),
            exports=ExportsSummary(
                count=exports.integer("count", minimum=0),
                digest=exports.text_or_none("digest"),
                size=exports.integer("size", minimum=0),
            ),
            paths=tuple(
                path.parsed_list("nodes", NodeName.parse, maximum=MAX_STEPS)
                for path in fields.inner_list("paths", maximum=MAX_PATHS)
            ),
            servers=tuple(
                map(ExportedServer.parse, fields.inner_list("servers", maximum=MAX_SERVERS))
            ),
            catalog=None
            if catalog is None
            else CatalogSummary(
                digest=catalog.text("digest"),
                size=catalog.integer("size", minimum=1),
                resources=catalog.integer_or_none("resources", minimum=0),
            ),
            tagged_at=fields.integer_or_none("tagged_at", minimum=0),
            commit=fields.parsed_or_none("commit", partial(parse_object_id, where="")),
            digest=fields.text("digest"),
        )

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {
            "schema": SCHEMA,
            **field_values(self),
            "components": [component.to_dict() for component in self.components],
            "queries": [field_values(query) for query in self.queries],
            "exports": field_values(self.exports),
            "servers": [server.to_dict() for server in self.servers],
            "catalog": None if self.catalog is None else field_values(self.catalog),
            "paths": [{"nodes": list(path)} for path in self.paths],
        }

    def digested(self) -> "InventoryEntry":
        """Return the entry with the digest of its content."""
        content = {key: value for key, value in self.to_dict().items() if key not in _NOT_DIGESTED}
        content["queries"] = [query.text for query in self.queries]
        return replace(self, digest=hashlib.sha256(canonical(content)).hexdigest())

    def to_payload(self) -> bytes:
        """Return the bytes to sign: packed JSON.

        Raises:
            InvalidInputError: They exceed the limits of receivers.
        """
        data = json.dumps(self.to_dict(), separators=(",", ":")).encode("ascii")
        packed = zlib.compress(data)
        for size, limit, form in (
            (len(data), MAX_INFLATED, "as JSON"),
            (len(packed), MAX_PACKED, "packed"),
        ):
            if size > limit:
                raise InvalidInputError(
                    f"is too large: {size} bytes {form}, the limit is {limit}",
                    where=_WHERE,
                    hint="exclude facts with 'inventory: {hide: [NAME]}' in localpuppet.yaml",
                )
        return packed


def inflate(payload: bytes) -> bytes:
    """Unpack a payload, never holding more than `MAX_INFLATED` bytes.

    Raises:
        InvalidInputError: The bytes are not one complete zlib stream, or the result is too large.
    """
    if len(payload) > MAX_PACKED:
        raise InvalidInputError(
            f"is too large: {len(payload)} bytes packed, the limit is {MAX_PACKED}", where=_WHERE
        )
    try:
        return unpacked(payload, most=MAX_INFLATED)
    except TooMuchError as error:
        raise InvalidInputError(f"is too large: {error}", where=_WHERE) from error
    except ValueError as error:
        raise InvalidInputError(f"is malformed: {error}", where=_WHERE) from error


def parse_role(text: str) -> str:
    """Return a role: one plain line.

    Raises:
        InvalidInputError: The text is empty, longer than 1 KiB, or has a control character.
    """
    return parse_line(text, what="role")


def _text(text: str) -> str:
    return text


def at_path(facts: Mapping[str, Json], path: str) -> Json:
    """Return the fact at a dotted path; `None` if it is missing."""
    value: Json = dict(facts)
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value
