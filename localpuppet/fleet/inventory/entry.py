"""An inventory entry: what a node says of its last good run, as it stands on the bus.

Owns: the fields, their strict reading, the packed form, and what an entry's digest is over. Refuses
to know: signatures, which facts a node tells of (`facts`), who may claim what (`claims`).

- An entry is JSON, packed with zlib: at most `MAX_PACKED` bytes on the bus and `MAX_INFLATED` bytes
  unpacked; nothing larger is ever unpacked whole. It has at most `MAX_VALUES` values, for what one
  takes in memory has nothing to do with the bytes it is written in.
- Each list has a limit of its own. A field that this version does not know is passed over, so that
  a newer node stays in the views of older ones.
- The digest is over what the entry says: not over when and in which run it was found, nor over the
  chains that led there, nor over the answers that a catalog got. It is the signer's own word.

Example: `InventoryEntry.parse(entry.to_payload()) == entry`.
"""

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import ClassName, Environment, NodeName, RunId
from localpuppet.base.formats.packed import TooMuchError, unpacked
from localpuppet.base.formats.strict_json import loads_again, parse_object
from localpuppet.base.formats.text import parse_line
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.component import MAX_COMPONENTS, Component
from localpuppet.fleet.inventory.server import MAX_SERVERS, ExportedServer
from localpuppet.node.releases.git.names import parse_object_id

# What a signature is over; base64 and the signature make up to 512 KiB of it on the bus.
MAX_PACKED = 360 * 1024
MAX_INFLATED = 4 * 1024 * 1024
MAX_VALUES = 100_000
MAX_ROLES = 64
MAX_CLASSES = 10_000
MAX_KICKS = 256
MAX_QUERIES = 256
MAX_PATHS = 32
# Seconds by which another clock may be before ours.
AHEAD = 300.0
# A trigger is refused after 8 hops; this is only so much work for a bad entry.
MAX_STEPS = 18

_WHERE = "inventory entry"
# Not part of what an entry says, or its very digest.
_NOT_DIGESTED = ("at", "run", "paths", "digest")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuery:
    """A question that the node's catalog asked of the inventory.

    Attributes:
        text: The question.
        digest: The digest of the answer that it got.
    """

    text: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportsSummary:
    """What the node exports, in short: the chunks themselves stand at keys of their own.

    Attributes:
        count: How many resources.
        digest: The digest over the bytes that they are packed in; `None` where there are none.
        size: How many bytes these are.
    """

    count: int
    digest: str | None
    size: int = 0


NO_EXPORTS = ExportsSummary(count=0, digest=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryEntry:
    """What one node says of its last good run.

    Attributes:
        node: The node.
        at: When the run had ended, by the node's clock: seconds since 1970, UTC.
        run: The run.
        release: The release that was applied, `foo/tags/r1`; `None` where the input named none.
        environment: Puppet's environment; `None` where the input named none.
        facts: Facts by name, structured as Facter has them.
        roles: What the node is for; at most `MAX_ROLES`.
        classes: The classes in its catalog.
        components: The parts of applications on it.
        kicks: The roles and queries that its catalog kicks.
        queries: What its catalog asked.
        exports: What it exports.
        servers: The servers among that.
        paths: The chains of nodes that led to the run, each with the first cause first; an empty
            one where the run began on the node itself. At most `MAX_PATHS`.
        tagged_at: When the tag of the release says that it was made, in seconds since 1970; `None`
            where that is not known.
        commit: The commit behind that tag, as it was staged; `None` where the release was not.
        digest: SHA-256 over what the entry says, hexadecimal; see `digested`.
    """

    node: NodeName
    at: float
    run: RunId
    release: str | None
    environment: Environment | None
    facts: Mapping[str, Json]
    roles: tuple[str, ...]
    classes: tuple[ClassName, ...] = ()
    components: tuple[Component, ...] = ()
    kicks: tuple[str, ...] = ()
    queries: tuple[AskedQuery, ...] = ()
    exports: ExportsSummary = NO_EXPORTS
    paths: tuple[tuple[NodeName, ...], ...] = ()
    servers: tuple[ExportedServer, ...] = ()
    tagged_at: int | None = None
    commit: str | None = None
    digest: str = ""

    @classmethod
    def parse(cls, payload: bytes) -> "InventoryEntry":
        """Return the entry in a payload.

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
        """Return the entry in a payload that `parse` has taken before: for a fifth of the work.

        Raises:
            ValueError: The bytes are another payload's, or were damaged since.
        """
        try:
            raw = loads_again(inflate(payload))
            exports = raw["exports"]
            return cls(
                node=NodeName(raw["node"]),
                at=raw["at"],
                run=RunId(raw["run"]),
                release=raw.get("release"),
                environment=_environment_again(raw.get("environment")),
                facts=raw["facts"],
                roles=tuple(raw["roles"]),
                classes=tuple(map(ClassName, raw["classes"])),
                components=tuple(Component.parse_again(one) for one in raw["components"]),
                kicks=tuple(raw["kicks"]),
                queries=tuple(
                    AskedQuery(text=one["text"], digest=one["digest"]) for one in raw["queries"]
                ),
                exports=ExportsSummary(
                    count=exports["count"],
                    digest=exports.get("digest"),
                    size=exports.get("size", 0),
                ),
                paths=tuple(tuple(map(NodeName, one["nodes"])) for one in raw["paths"]),
                servers=tuple(map(ExportedServer.parse_again, raw.get("servers", ()))),
                tagged_at=raw.get("tagged_at"),
                commit=raw.get("commit"),
                digest=raw["digest"],
            )
        except (KeyError, TypeError, AttributeError, RecursionError, InvalidInputError) as error:
            raise ValueError(f"not the payload of an entry: {error!r}") from error

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json]) -> "InventoryEntry":
        """Return the entry.

        Args:
            raw: The fields; those that this version does not know are passed over.

        Raises:
            InvalidInputError: A field is missing, or not what it must be.
        """
        fields = Fields(raw, where=_WHERE)
        exports = fields.inner("exports")
        return cls(
            node=fields.parsed("node", NodeName.parse),
            at=fields.number("at"),
            run=fields.parsed("run", RunId.parse),
            release=_release(fields),
            environment=_environment(fields),
            facts=fields.mapping("facts"),
            roles=fields.parsed_list("roles", parse_role, maximum=MAX_ROLES),
            classes=fields.parsed_list("classes", _class_name, maximum=MAX_CLASSES),
            components=tuple(
                Component.parse(one)
                for one in fields.inner_list("components", maximum=MAX_COMPONENTS)
            ),
            kicks=fields.parsed_list("kicks", _text, maximum=MAX_KICKS),
            queries=tuple(
                AskedQuery(text=one.text("text"), digest=one.text("digest"))
                for one in fields.inner_list("queries", maximum=MAX_QUERIES)
            ),
            exports=ExportsSummary(
                count=exports.integer("count", minimum=0),
                digest=exports.text_or_none("digest"),
                size=exports.integer_or_none("size", minimum=0) or 0,
            ),
            paths=tuple(
                one.parsed_list("nodes", NodeName.parse, maximum=MAX_STEPS)
                for one in fields.inner_list("paths", maximum=MAX_PATHS)
            ),
            servers=tuple(map(ExportedServer.parse, _servers(fields))),
            tagged_at=fields.integer_or_none("tagged_at", minimum=0),
            commit=_commit(fields),
            digest=fields.text("digest"),
        )

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {
            "node": str(self.node),
            "at": self.at,
            "run": str(self.run),
            "release": self.release,
            "environment": None if self.environment is None else str(self.environment),
            "facts": dict(self.facts),
            "roles": list(self.roles),
            "classes": [str(name) for name in self.classes],
            "components": [one.to_dict() for one in self.components],
            "kicks": list(self.kicks),
            "queries": [{"text": one.text, "digest": one.digest} for one in self.queries],
            "exports": {
                "count": self.exports.count,
                "digest": self.exports.digest,
                "size": self.exports.size,
            },
            "servers": [one.to_dict() for one in self.servers],
            "tagged_at": self.tagged_at,
            "commit": self.commit,
            "paths": [{"nodes": [str(name) for name in path]} for path in self.paths],
            "digest": self.digest,
        }

    def digested(self) -> "InventoryEntry":
        """Return the entry with the digest of what it says now."""
        said = {key: value for key, value in self.to_dict().items() if key not in _NOT_DIGESTED}
        said["queries"] = [query.text for query in self.queries]
        canonical = json.dumps(said, sort_keys=True, separators=(",", ":")).encode("ascii")
        return replace(self, digest=hashlib.sha256(canonical).hexdigest())

    def to_payload(self) -> bytes:
        """Return the bytes that are signed: JSON, packed.

        Raises:
            InvalidInputError: They are more than a receiver would take.
        """
        data = json.dumps(self.to_dict(), separators=(",", ":")).encode("ascii")
        packed = zlib.compress(data)
        for found, limit, form in (
            (len(data), MAX_INFLATED, "as JSON"),
            (len(packed), MAX_PACKED, "packed"),
        ):
            if found > limit:
                raise InvalidInputError(
                    f"is too large: {found} bytes {form}, the limit is {limit}",
                    where=_WHERE,
                    hint="leave facts out with 'inventory: {hide: [NAME]}' in localpuppet.yaml",
                )
        return packed


def inflate(payload: bytes) -> bytes:
    """Return what was packed, without ever holding more than `MAX_INFLATED` bytes of it.

    Raises:
        InvalidInputError: The bytes are not one whole zlib stream, or too many come out of them.
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


def _servers(fields: Fields) -> tuple[Fields, ...]:
    # Older versions say nothing of servers.
    return fields.inner_list("servers", maximum=MAX_SERVERS) if "servers" in fields else ()


def _text(text: str) -> str:
    return text


def _class_name(text: str) -> ClassName:
    return ClassName.parse(text, where="")


def _release(fields: Fields) -> str | None:
    if fields.text_or_none("release") is None:
        return None
    return fields.parsed("release", lambda text: parse_line(text, what="release"))


def _commit(fields: Fields) -> str | None:
    if fields.text_or_none("commit") is None:
        return None
    return fields.parsed("commit", lambda text: parse_object_id(text, where=""))


def _environment(fields: Fields) -> Environment | None:
    if fields.text_or_none("environment") is None:
        return None
    return fields.parsed("environment", lambda text: Environment.parse(text, where=""))


def _environment_again(name: str | None) -> Environment | None:
    return None if name is None else Environment(name)
