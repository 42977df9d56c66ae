"""A capture: all that a node's catalog depends on besides the release, without secrets.

- `{"__ptype": "Withheld", "type": "String"}` replaces a value that may be secret. Mappings and
  lists keep their form, because code branches on it; only the values in them are replaced.
- A value is withheld if a key on its path matches a pattern, at any depth, or if its text shows
  that it is a secret: a private key, or an address with a password or token. A mapping with `name`,
  `path`, `key` or the like beside `value`, such as a row of facts, counts as a key with its value.
- True, false, null and empty texts stay: code branches on them, and they are no secrets.
- For Puppet, a placeholder becomes a value of its type. The value depends on the path only, so that
  two compilations of a node get the same one, and two secrets of a node different ones.
- A node writes its capture from its last good run; a person writes one with facts and little else.
  One format for both, as `capture.schema.json` describes it. All keys but `facts` are optional.
- The data of the input and of the site's ENC are those *before* the release's `enc.yaml`, so that a
  change of `enc.yaml` has its effect.
- Values that may be secret are typed placeholders.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import lru_cache
from typing import Annotated, Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, check_limit, errors_at
from localpuppet.base.formats.converter import AllowedRange, JsonForm, Message
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.schema_number import schema_problem
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import parse_time
from localpuppet.base.formats.values import Json, at, field_values
from localpuppet.base.value import Value
from localpuppet.node.enc.document import EncData
from localpuppet.node.preview import preview_limits as limits
from localpuppet.node.preview.compile_request import CapturedQuery

TYPE_KEY, WITHHELD = "__ptype", "Withheld"
# Keys of possible secrets, in lower case and without '_', '-', '.' and blanks. No node publishes
# such facts.
SECRET = (
    *("*userdata*", "*customdata*", "*startupscript*", "*password*", "*passwd*", "*passphrase*"),
    *("*secret*", "*credential*", "*token*", "*accesskey*", "*apikey*", "*privatekey*"),
    *("*sharedkey*", "*sessionkey*", "*sshkeys", "*kubeconfig*"),
)
# A placeholder costs less than a fact that the inventory lacks: these match more.
DEFAULT_PATTERNS = (
    *SECRET,
    *("*pwd*", "*pw", "pin", "*psk*", "*salt*", "*key", "*keys", "*keydata*", "*cert*key*"),
    *("*auth", "*authorization*", "*cookie*", "*community*", "*vault*", "*pass", "*passcode*"),
    *("*creds*", "*bearer*", "*jwt*"),
)
_SEPARATORS = str.maketrans("", "", "_-. ")
# Keys of a row, in lower case, that name what is in its `value`.
_NAMING = ("name", "path", "key", "title", "setting", "variable")
# Finds a text that itself is a secret: a private key, an address with a password.
shows_secret = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY|AGE-SECRET-KEY-1|[a-z]://[^/\s:@]*:[^/\s@]+@"
    r"|https?://[^/\s:@]+@",
    re.IGNORECASE,
).search
_NUMBERS = {"Integer": 4096, "Float": 4096.5}
TYPES = ("String", *_NUMBERS)


@dataclass(frozen=True, slots=True)
class WithheldKeys:
    """Shell globs of keys whose values are withheld, without case, `_`, `-`, `.` and blanks."""

    patterns: tuple[str, ...] = DEFAULT_PATTERNS
    shown: tuple[str, ...] = ()

    def has(self, key: str) -> bool:
        return _matches(key, self.patterns) and not _matches(key, self.shown)


def withhold(value: Json, keys: WithheldKeys) -> Json:
    """Return a value with placeholders for all that may be secret in it."""
    if isinstance(value, dict):
        if value.get(TYPE_KEY) == WITHHELD:
            return value
        named = {"__pvalue", *(["value"] if any(map(keys.has, _names(value))) else ())}
        secret = {key for key in value if keys.has(key) or key.lower() in named}
        return {
            key: withhold_all(item) if key in secret else withhold(item, keys)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [withhold(item, keys) for item in value]
    if isinstance(value, str) and shows_secret(value):
        return withhold_all(value)
    return value


def _names(row: Mapping[str, Json]) -> list[str]:
    """Return the names that a row gives to its value: `name`, `key`, the steps of `path`."""
    given = [item for key, item in row.items() if key.lower() in _NAMING]
    names = [name for item in given for name in (item if isinstance(item, list) else [item])]
    return [name for name in names if isinstance(name, str)]


def withhold_all(value: Json) -> Json:
    """Return a value with placeholders for all values in it that can be a secret."""
    if isinstance(value, dict):
        if value.get(TYPE_KEY) == WITHHELD:
            return value
        # The name of a rich data type stays: it is Puppet's.
        return {key: item if key == TYPE_KEY else withhold_all(item) for key, item in value.items()}
    if isinstance(value, list):
        return [withhold_all(item) for item in value]
    if value is None or value is True or value is False or value == "":
        return value
    kinds = {int: "Integer", float: "Float", str: "String"}
    return {TYPE_KEY: WITHHELD, "type": kinds[type(value)]}


def matching(keys: Iterable[str], patterns: tuple[str, ...]) -> set[str]:
    """Return the keys that, in any spelling, match one of the patterns."""
    return {key for key in keys if _matches(key, patterns)}


@lru_cache(maxsize=8192)
def _matches(key: str, patterns: tuple[str, ...]) -> bool:
    return _pattern(patterns).match(key.lower().translate(_SEPARATORS)) is not None


@lru_cache(maxsize=8)
def _pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    # Without patterns nothing matches: an empty expression would match everything.
    plain = (pattern.lower().translate(_SEPARATORS) for pattern in patterns)
    return re.compile("|".join(map(translate, plain)) or r"(?!)")


def with_stand_ins(value: Json, *, where: str) -> Json:
    """Return a value for Puppet: each placeholder becomes a value of its type."""
    if isinstance(value, dict):
        if value.get(TYPE_KEY) == WITHHELD:
            return _stand_in(value, where)
        return {key: with_stand_ins(item, where=at(where, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [with_stand_ins(item, where=at(where, index)) for index, item in enumerate(value)]
    return value


def _stand_in(placeholder: Mapping[str, Json], where: str) -> Json:
    kind = placeholder.get("type")
    if kind not in TYPES or len(placeholder) != 2:
        raise InvalidInputError(
            f"is a placeholder without a known type, which is one of {', '.join(TYPES)}",
            where=where,
        )
    if kind in _NUMBERS:
        return _NUMBERS[str(kind)]
    return f"withheld-{hashlib.sha256(where.encode()).hexdigest()[:16]}"


SCHEMA = 1
NO_DATA = EncData(classes={}, parameters={})


def _schema(number: object) -> object:
    if problem := schema_problem(number, SCHEMA):
        raise InvalidInputError(problem)
    return number


def _time(text: str) -> str:
    try:
        parse_time(text)
    except ValueError as error:
        raise InvalidInputError("is not a time, ISO 8601 with a zone") from error
    return text


class _CaptureFile(Message):
    """The keys of a capture, as `capture.schema.json` describes them."""

    schema: Annotated[int, JsonForm(_schema)] = SCHEMA
    node: str | None = None
    captured: Annotated[str, _time] | None = None
    release: str | None = None
    layers: Annotated[tuple[str, ...], AllowedRange(maximum=limits.MAX_CAPTURE_LAYERS)] = ()
    classes: dict[str, dict[str, Json] | None] | list[str] | None = None
    parameters: dict[str, Json] | None = None
    environment: str | None = None
    facts: dict[str, Json]
    trusted: dict[str, Json] = field(default_factory=dict)
    queries: Annotated[
        tuple[CapturedQuery, ...], AllowedRange(maximum=limits.MAX_CAPTURE_QUERIES)
    ] = ()


class NodeCapture(Value):
    """What a node's catalog depends on besides the release.

    Attributes:
        trusted: `$trusted`; empty for Puppet's defaults for the name.
        layers: The layers of the release's `enc.yaml` that the input names, lowest first.
        data: The ENC data of the input over the answer of the site's ENC.
        captured, release: Of the last good run; empty if a person wrote the capture.
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
        """Return the capture in JSON from outside."""
        raw = parse_object(
            data, where=where, limit=limits.MAX_CAPTURE, values=limits.MAX_CAPTURE_VALUES
        )
        return cls.from_dict(raw, node=node, where=where)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json], *, node: NodeName, where: str) -> "NodeCapture":
        """Return the capture in `raw`; see `parse`."""
        with errors_at(where, LocalpuppetError):
            capture = _CaptureFile.read(raw)
            if capture.node not in (None, node):
                raise InvalidInputError(f"must be {node}", where="node")
            with_stand_ins({**raw}, where="")  # raises for an unknown placeholder
            return cls(
                node=node,
                facts=capture.facts,
                trusted=capture.trusted,
                layers=capture.layers,
                data=EncData.from_dict(raw),
                queries=capture.queries,
                captured=capture.captured or "",
                release=one_line(capture.release or "")[: limits.MAX_CAPTURE_NAME],
            )

    def to_dict(self) -> dict[str, Json]:
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
        """Return the capture as sorted lines of JSON, so that two captures compare line by line."""
        data = (json.dumps(self.to_dict(), indent=1, sort_keys=True) + "\n").encode("ascii")
        check_limit(len(data), limits.MAX_CAPTURE)
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
    """A node of a preview, with the digest of its capture's bytes."""

    name: str
    capture: bytes
    load: Callable[[], NodeCapture]
