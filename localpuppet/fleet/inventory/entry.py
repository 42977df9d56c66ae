"""An inventory entry: what a node publishes about its last good run, servers and components too.

- A node's own records are read strictly; too many components are an error.
- A server has the name of its node: queries return the signer's name as `fqdn` and `hostname`.
- Role and address are claims: see `admission`.
- An entry is JSON, packed with zlib. Its limits are in `bus_limits`; nothing larger is unpacked
  completely. Its values are counted, because the memory that they need does not depend on their
  length.
- Each list has its own limit. Unknown fields are ignored, so older nodes can read entries of newer
  ones.
- The digest is over the content: not over time, run and paths, nor over the answers that the
  catalog received. The signer computes it.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar

from localpuppet.base.errors import InvalidInputError, check_limit, errors_at
from localpuppet.base.formats.converter import (
    AllowedRange,
    JsonForm,
    JsonRecord,
    Message,
    form_of,
    from_record,
)
from localpuppet.base.formats.names import ClassName, EnvironmentName, NodeName, RunId
from localpuppet.base.formats.packed import TooMuchError, unpacked
from localpuppet.base.formats.strict_json import canonical, compact, loads_again, parse_object
from localpuppet.base.formats.text import parse_line
from localpuppet.base.formats.values import Json
from localpuppet.fleet.bus import bus_limits as limits
from localpuppet.node.releases.git.git_names import parse_object_id

_REFERENCE = re.compile(r"([^:\[]+)[^\[]*(\[.+\])\Z", re.DOTALL)


def _line(text: str) -> str:
    parse_line(text, what="name")
    if len(text) > limits.MAX_COMPONENT_NAME or text != text.strip():
        raise InvalidInputError(
            f"is not a name: at most {limits.MAX_COMPONENT_NAME} characters, no space at its ends"
        )
    return text


_Line = Annotated[str, _line]
_Capabilities = Annotated[tuple[_Line, ...], AllowedRange(maximum=limits.MAX_NODE_CAPABILITIES)]


class _Part(JsonRecord):
    """A part of an entry: a later version may have more keys, which this one ignores."""

    IS_OPEN: ClassVar = True


class NodeComponent(_Part):
    """A part of an application on the node, such as `Lamp::Mysql[app1]` of `Lamp[app1]`."""

    name: _Line
    application: _Line
    produces: _Capabilities
    consumes: _Capabilities


def application_of(name: str) -> str:
    """Return the application in a component's reference: `Lamp[app1]`."""
    reference = _REFERENCE.match(name)
    return name if reference is None else f"{reference[1]}{reference[2]}"


class NotedComponent(Message):
    """A component as the Puppet modules record it."""

    SCHEMA, IS_OPEN = 1, True
    name: _Line
    application: _Line | None = None
    produces: _Capabilities
    consumes: _Capabilities


def read_components(noted: Sequence[NotedComponent]) -> tuple[NodeComponent, ...]:
    """Return the components of a catalog, sorted; too many are an error: a plan would be wrong."""
    if len(noted) > limits.MAX_NODE_COMPONENTS:
        raise InvalidInputError(
            f"has {len(noted)} components; a node publishes at most {limits.MAX_NODE_COMPONENTS}",
            where="components of the catalog",
        )
    components = (
        NodeComponent(
            name=note.name,
            application=note.application or application_of(note.name),
            produces=note.produces,
            consumes=note.consumes,
        )
        for note in noted
    )
    return tuple(sorted(components, key=lambda one: (one.application, one.name)))


Port = int | str


def ports_of(value: Json) -> tuple[Port, ...]:
    """Return ports from one value, a list, or null."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    ports: list[Port] = []
    for number in listed:
        if isinstance(number, bool) or not isinstance(number, int | str):
            raise InvalidInputError("a port is neither a number nor a text", where="ports")
        ports.append(number if isinstance(number, int) else parse_line(number, what="port"))
    if len(ports) > limits.MAX_PORTS:
        raise InvalidInputError(f"has more than {limits.MAX_PORTS} ports", where="ports")
    return tuple(ports)


class ExportedServer(_Part):
    """One server, since its node first exported it."""

    role: Annotated[str, partial(parse_line, what="role")]
    ipaddress: Annotated[str, partial(parse_line, what="address")] | None
    ports: Annotated[tuple[Port, ...], JsonForm(ports_of, list)]
    since: float

    def facts(self, node: NodeName) -> dict[str, Json]:
        """Return the facts of the server that a query receives."""
        return {
            "role": self.role,
            "fqdn": str(node),
            "hostname": node.partition(".")[0],
            "ipaddress": self.ipaddress,
            "ports": list(self.ports),
        }


# Shown for a missing fact.
NOTHING = "-"
# Seconds by which another node's clock may be ahead.
AHEAD = 300.0

_WHERE = "inventory entry"
# Fields outside of the digest.
_NOT_DIGESTED = ("schema", "at", "run", "paths", "digest")
SCHEMA = 1
_LONG, _DIGITS = b"0" * 19, bytes(b"0 "[not 48 <= byte < 58] for byte in range(256))
# The class of each catalog, which Puppet leaves out of its list of classes.
MAIN = "main"


class CatalogQuery(_Part):
    """A query of the node's catalog."""

    text: str
    digest: str


class ExportsSummary(_Part):
    """A summary of what the node exports; the chunks themselves have their own keys."""

    count: Annotated[int, AllowedRange(minimum=0)]
    digest: str | None
    size: Annotated[int, AllowedRange(minimum=0)] = 0


class CatalogSummary(_Part):
    """A published catalog; the chunks themselves have their own keys."""

    digest: str
    size: Annotated[int, AllowedRange(minimum=1)]
    resources: Annotated[int, AllowedRange(minimum=0)] | None = None


NO_EXPORTS = ExportsSummary(count=0, digest=None)


def parse_role(text: str) -> str:
    """Return a role: one plain line of at most 1 KiB."""
    return parse_line(text, what="role")


_Role = Annotated[str, parse_role]


def _recipient(text: str) -> str:
    from localpuppet.node.sealed.age import RECIPIENT  # few nodes publish one

    if not re.fullmatch(RECIPIENT, text):
        raise InvalidInputError("is not an age recipient")
    return text


class _CausePath(_Part):
    nodes: Annotated[tuple[NodeName, ...], AllowedRange(maximum=limits.MAX_KICK_STEPS)]


_PATHS = form_of(Annotated[tuple[_CausePath, ...], AllowedRange(maximum=limits.MAX_KICK_PATHS)])
_Paths = JsonForm(
    lambda raw: tuple(path.nodes for path in _PATHS.read(raw)),
    lambda paths: [{"nodes": [*map(str, path)]} for path in paths],
    (list,),
)


class InventoryEntry(_Part):
    """What one node publishes about its last good run.

    Attributes:
        at: When the run ended by the node's clock.
        release: The applied release, `foo/tags/r1`; `None` if the input has none.
        paths: The chains of nodes that led to the run, first cause first; an empty chain if the run
            began on this node. At most `MAX_KICK_PATHS`.
        tagged_at: The time in the release's tag.
        sealing: The recipients to which secrets for this node are sealed, the newest first: two
            while it changes its key.
    """

    SCHEMA: ClassVar = 1
    node: NodeName
    at: float
    run: RunId
    release: Annotated[str, partial(parse_line, what="release")] | None
    environment: EnvironmentName | None
    facts: Mapping[str, Json]
    roles: Annotated[tuple[_Role, ...], AllowedRange(maximum=limits.MAX_ROLES)]
    classes: Annotated[tuple[ClassName, ...], AllowedRange(maximum=limits.MAX_CLASSES)] = ()
    components: Annotated[
        tuple[NodeComponent, ...], AllowedRange(maximum=limits.MAX_NODE_COMPONENTS)
    ] = ()
    kicks: Annotated[tuple[str, ...], AllowedRange(maximum=limits.MAX_KICKS)] = ()
    queries: Annotated[
        tuple[CatalogQuery, ...], AllowedRange(maximum=limits.MAX_ENTRY_QUERIES)
    ] = ()
    exports: ExportsSummary = NO_EXPORTS
    paths: Annotated[tuple[tuple[NodeName, ...], ...], _Paths] = ()
    servers: Annotated[tuple[ExportedServer, ...], AllowedRange(maximum=limits.MAX_SERVERS)] = ()
    catalog: CatalogSummary | None = None
    tagged_at: Annotated[int, AllowedRange(minimum=0)] | None = None
    commit: Annotated[str, partial(parse_object_id, where="")] | None = None
    sealing: Annotated[tuple[Annotated[str, _recipient], ...], AllowedRange(maximum=2)] = ()
    digest: str = ""

    @classmethod
    def parse(cls, payload: bytes) -> "InventoryEntry":
        """Read the entry in packed JSON from the bus; raise `InvalidInputError` for other bytes."""
        raw = parse_object(
            inflate(payload),
            where=_WHERE,
            limit=limits.MAX_ENTRY,
            values=limits.MAX_ENTRY_VALUES,
            fast=read_canonical,
        )
        return from_record(cls, raw, where=_WHERE)

    @classmethod
    def parse_again(cls, payload: bytes) -> "InventoryEntry":
        """Read faster what `parse` accepted before; raise `ValueError` if it has changed since."""
        try:
            return from_record(cls, loads_again(inflate(payload)), where=_WHERE)
        except (RecursionError, InvalidInputError) as error:
            raise ValueError(f"not the payload of an entry: {error!r}") from error

    def digested(self) -> "InventoryEntry":
        content = {key: value for key, value in self.to_dict().items() if key not in _NOT_DIGESTED}
        content["queries"] = [query.text for query in self.queries]
        return replace(self, digest=hashlib.sha256(canonical(content)).hexdigest())

    def to_payload(self) -> bytes:
        """Return packed JSON to sign; raise `InvalidInputError` above the limits of receivers."""
        data = json.dumps(self.to_dict(), separators=(",", ":")).encode("ascii")
        packed = zlib.compress(data)
        hint = "exclude facts with 'inventory: {hide: [NAME]}' in localpuppet.yaml"
        with errors_at(_WHERE):
            check_limit(len(data), limits.MAX_ENTRY, unit="bytes as JSON", hint=hint)
            check_limit(len(packed), limits.MAX_PACKED_ENTRY, unit="bytes packed", hint=hint)
        return packed


def read_canonical(data: bytes) -> Json:
    """Return the value of JSON as nodes write it; `None` for any other form.

    msgspec writes the same bytes again, so they have no duplicate key. It takes half the time of
    the strict reader, which reads all else and explains what is wrong.
    """
    try:
        import msgspec
    except ImportError:  # an optional library
        return None
    if _LONG in data.translate(_DIGITS):  # an integer beyond 64 bits, perhaps
        return None
    encode = msgspec.json.encode
    try:
        value: Json = msgspec.json.decode(data)
        if not (isinstance(value, dict) and isinstance(facts := value.get("facts"), dict)):
            return value if encode(value) == data else None
        written = {name: encode(fact) for name, fact in facts.items()}
        raw = {name: msgspec.Raw(text) for name, text in written.items()}
        if encode({**value, "facts": raw}) != data:
            return None
    except (ValueError, RecursionError):
        return None
    if data.isascii():
        texts = {name: text.decode("ascii") for name, text in written.items()}
        value["facts"] = WrittenFacts(facts, texts)
    return value


class WrittenFacts(dict[str, Json]):
    """Facts, each also as `compact` writes it: the reader of an entry has written it again."""

    def __init__(self, facts: dict[str, Json], texts: Mapping[str, str]) -> None:
        super().__init__(facts)
        self.texts = texts


def fact_texts(facts: Mapping[str, Json]) -> Mapping[str, str]:
    """Return facts as `compact` writes them: JSON in ASCII, without optional spaces."""
    if isinstance(facts, WrittenFacts):
        return facts.texts
    return {name: compact(fact) for name, fact in facts.items()}


def inflate(payload: bytes) -> bytes:
    """Unpack a payload, never holding more than `MAX_ENTRY` bytes."""
    check_limit(len(payload), limits.MAX_PACKED_ENTRY, unit="bytes packed", where=_WHERE)
    try:
        return unpacked(payload, most=limits.MAX_ENTRY)
    except TooMuchError as error:
        raise InvalidInputError(f"is too large: {error}", where=_WHERE) from error
    except ValueError as error:
        raise InvalidInputError(f"is malformed: {error}", where=_WHERE) from error


def at_path(facts: Mapping[str, Json], path: str) -> Json:
    """Return the fact at a dotted path; `None` if it is missing."""
    value: Json = dict(facts)
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value


def text_of(value: Json) -> str:
    """Return a fact as text; `NOTHING` for a missing fact."""
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
