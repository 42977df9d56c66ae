"""A capture: all that a node's catalog depends on besides the release.

- A node writes its capture from its last good run; a person writes one with facts and little else.
  One format for both, as `capture.schema.json` describes it. All keys but `facts` are optional.
- The data of the input and of the site's ENC are those *before* the release's `enc.yaml`, so that a
  change of `enc.yaml` has its effect.
- Values that may be secret are typed placeholders.

Example: `NodeCapture.parse(capture.to_bytes(), node=capture.node, where="web1") == capture`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import parse_time
from localpuppet.base.formats.values import Json, field_values, wrong_type
from localpuppet.base.value import Value
from localpuppet.node.enc.document import EncData
from localpuppet.node.preview.ports import CapturedQuery
from localpuppet.node.preview.withheld import with_stand_ins

SCHEMA = 1
MAX_BYTES = 8 * 1024 * 1024
MAX_VALUES = 400_000
MAX_LAYERS = 256
MAX_NAME = 1024
MAX_QUERIES = 512
NO_DATA = EncData(classes={}, parameters={})
_KEYS = (
    *("schema", "node", "captured", "release", "layers", "classes", "parameters", "environment"),
    *("facts", "trusted", "queries"),
)


class NodeCapture(Value):
    """What a node's catalog depends on besides the release.

    Attributes:
        node: The node.
        facts: The facts as Puppet saw them, structured, by name.
        trusted: `$trusted`; empty for Puppet's defaults for the name.
        layers: The layers of the release's `enc.yaml` that the input names, lowest first.
        data: The ENC data of the input over the answer of the site's ENC.
        queries: The queries of the last good run.
        captured: The time of the last good run, ISO 8601, UTC; empty if a person wrote the capture.
        release: The release of that run; empty if a person wrote the capture.
    """

    node: NodeName
    facts: Mapping[str, Json]
    trusted: Mapping[str, Json] = field(default_factory=dict)
    layers: tuple[str, ...] = ()
    data: EncData = NO_DATA
    queries: tuple[CapturedQuery, ...] = ()
    captured: str = ""
    release: str = ""

    @classmethod
    def parse(cls, data: bytes, *, node: NodeName, where: str) -> "NodeCapture":
        """Return the capture in JSON from outside.

        Args:
            data: JSON.
            node: The node of which the capture must be.
            where: Its name in messages.

        Raises:
            InvalidInputError: It exceeds a limit, is malformed, or is of another node.
        """
        raw = parse_object(data, where=where, limit=MAX_BYTES, values=MAX_VALUES)
        return cls.from_dict(raw, node=node, where=where)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json], *, node: NodeName, where: str) -> "NodeCapture":
        """Return the capture in `raw`; see `parse`."""
        with errors_at(where, LocalpuppetError):
            return cls._read(raw, node)

    @classmethod
    def _read(cls, raw: Mapping[str, Json], node: NodeName) -> "NodeCapture":
        fields = Fields(raw, where="")
        fields.only(_KEYS)
        if "schema" in fields:
            fields.schema(SCHEMA)
        named = fields.text_or_none("node")
        if named not in (None, node):
            raise InvalidInputError(f"must be {node}", where="node")
        facts = fields.mapping("facts")
        trusted = fields.mapping("trusted") if "trusted" in fields else {}
        data = EncData.from_dict(_checked_data(raw))
        with_stand_ins({**raw}, where="")  # raises for an unknown placeholder
        return cls(
            node=node,
            facts=facts,
            trusted=trusted,
            layers=fields.parsed_list("layers", str, maximum=MAX_LAYERS)
            if "layers" in fields
            else (),
            data=data,
            queries=tuple(map(_query, fields.inner_list("queries", maximum=MAX_QUERIES)))
            if "queries" in fields
            else (),
            captured=fields.parsed_or_none("captured", _time) or "",
            release=one_line(fields.text_or_none("release") or "")[:MAX_NAME],
        )

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {
            "schema": SCHEMA,
            "node": str(self.node),
            **({"captured": self.captured} if self.captured else {}),
            **({"release": self.release} if self.release else {}),
            "layers": list(self.layers),
            **self.data.to_dict(),
            "facts": dict(self.facts),
            "trusted": dict(self.trusted),
            "queries": [field_values(query) for query in self.queries],
        }

    def to_bytes(self) -> bytes:
        """Return the capture as lines of JSON, sorted, so that two captures compare line by line.

        Raises:
            InvalidInputError: It exceeds `MAX_BYTES`.
        """
        data = (json.dumps(self.to_dict(), indent=1, sort_keys=True) + "\n").encode("ascii")
        if len(data) > MAX_BYTES:
            raise InvalidInputError(f"is too large: {len(data)} bytes, the limit is {MAX_BYTES}")
        return data

    def values_for_puppet(self) -> "NodeCapture":
        """Return the capture with a value of its type for each placeholder."""
        raw: Any = with_stand_ins(self.to_dict(), where="")
        return replace(
            self,
            facts=raw["facts"],
            trusted=raw["trusted"],
            data=EncData.from_dict(raw),
            queries=tuple(
                CapturedQuery(**{**query, "arguments": tuple(query["arguments"])})
                for query in raw["queries"]
            ),
        )


class CapturedNode(Value):
    """A node of a preview.

    Attributes:
        name: Its name.
        capture: The digest of its capture's bytes.
        load: Parses the capture.
    """

    name: str
    capture: bytes
    load: Callable[[], NodeCapture]


def _time(text: str) -> str:
    try:
        parse_time(text)
    except ValueError as error:
        raise InvalidInputError("is not a time, ISO 8601 with a zone") from error
    return text


def _query(fields: Fields) -> CapturedQuery:
    fields.only(("function", "arguments", "answer"))
    return CapturedQuery(
        function=fields.text("function"),
        arguments=tuple(fields.values("arguments")),
        answer=fields.value("answer"),
    )


def _checked_data(raw: Mapping[str, Json]) -> dict[str, Json]:
    """Return the ENC data in `raw`, whose shape a schema need not have checked."""
    data = {name: raw.get(name) for name in ("classes", "parameters", "environment")}
    classes, parameters, environment = data.values()
    bodies = list(classes.values()) if isinstance(classes, dict) else []
    names = classes if isinstance(classes, list) else []
    if not isinstance(classes, dict | list | None):
        raise wrong_type(classes, "a mapping or a list", "classes")
    if not all(isinstance(body, dict | None) for body in bodies):
        raise InvalidInputError("must be a mapping of parameters", where="classes")
    if not all(isinstance(name, str) for name in names):
        raise InvalidInputError("must be a list of names", where="classes")
    if not isinstance(parameters, dict | None):
        raise wrong_type(parameters, "a mapping", "parameters")
    if not isinstance(environment, str | None):
        raise wrong_type(environment, "a string", "environment")
    return data
