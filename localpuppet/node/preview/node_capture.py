"""A capture: all that a node's catalog depends on besides the release; a directory of captures.

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

Example: `NodeCapture.parse(capture.to_bytes(), node=capture.node, where="web1") == capture`.

    web1.example.org.json      written by `localpuppet capture`, or by a person
    web2.example.org.yaml      written by a person: `facts:`, and what else the node needs
    4.2/debian-12-x86_64.facts facterdb's layout: `VERSION/SYSTEM.facts`, facts as JSON

- The file's name is the node's name. A file of facterdb gets the name `debian-12-x86-64.facter4.2`.
- Files whose name begins with a dot, or has another ending, are ignored.
- A file that cannot be used concerns its node only. A link may lead to a file in the directory.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.formats.converter import AllowedRange, JsonForm, Message
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.schema_number import schema_problem
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import parse_time
from localpuppet.base.formats.values import Json, at, field_values
from localpuppet.base.machine.files import disk_errors, input_errors, write_durably
from localpuppet.base.machine.open_tree import OpenTree
from localpuppet.base.value import Value
from localpuppet.node.enc.document import EncData
from localpuppet.node.preview import preview_limits as limits
from localpuppet.node.preview.compile_request import CapturedQuery
from localpuppet.node.preview.preview_limits import MAX_CAPTURE, MAX_CAPTURE_VALUES, MAX_CAPTURES
from localpuppet.node.preview.release_index import TreeStates

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
    """The keys whose values are withheld.

    Attributes:
        patterns: Shell globs of keys; case, `_`, `-`, `.` and blanks do not count.
    """

    patterns: tuple[str, ...] = DEFAULT_PATTERNS
    shown: tuple[str, ...] = ()

    def has(self, key: str) -> bool:
        """Return whether the value of a key is withheld."""
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

        Raises:
            InvalidInputError: It exceeds a limit, is malformed, or is of another node.
        """
        raw = parse_object(
            data,
            where=where,
            limit=limits.MAX_CAPTURE,
            values=limits.MAX_CAPTURE_VALUES,
        )
        return cls.from_dict(raw, node=node, where=where)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json], *, node: NodeName, where: str) -> "NodeCapture":
        """Return the capture in `raw`; see `parse`."""
        with errors_at(where, LocalpuppetError):
            return cls._read(raw, node)

    @classmethod
    def _read(cls, raw: Mapping[str, Json], node: NodeName) -> "NodeCapture":
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
            InvalidInputError: It exceeds `MAX_CAPTURE`.
        """
        data = (json.dumps(self.to_dict(), indent=1, sort_keys=True) + "\n").encode("ascii")
        if len(data) > limits.MAX_CAPTURE:
            raise InvalidInputError(
                f"is too large: {len(data)} bytes, the limit is {limits.MAX_CAPTURE}"
            )
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
        capture: The digest of its capture's bytes.
    """

    name: str
    capture: bytes
    load: Callable[[], NodeCapture]


# Captures that stay parsed.
_CAPTURES = 64
# A file that changed less than this before it was read may change again within the same time stamp.
_SETTLED = 2_000_000_000
# Characters of a name that no node can have.
_MAX_SHOWN = 200
_JSON, _YAML, _FACTS = ".json", (".yaml", ".yml"), ".facts"


class NodeFile(Value):
    """A file of a node.

    Attributes:
        node: The node; the name of the file if no node can have that name.
        status: Its device, number, size and times. While they are the same, so are its bytes: only
            root can set the time of a change of metadata.
        changed: The last of its times, in nanoseconds since 1970.
        problem: Why it cannot be used; `None` if it can.
    """

    node: str
    path: Path
    status: str = ""
    changed: int = 0
    problem: InvalidInputError | None = None


class NodesDirectory:
    """The captures of nodes.

    Args:
        inside: A directory that a link on the way to it must not leave; `None` for any way.
        limit: Bytes of a file.
    """

    def __init__(self, path: Path, *, inside: Path | None = None, limit: int = MAX_CAPTURE) -> None:
        self.path = path
        self._inside = inside
        self._limit = limit
        self._captures = lru_cache(_CAPTURES)(self.read)

    def nodes(self, known: TreeStates) -> list[CapturedNode]:
        """Return the nodes; only files that changed are read."""
        name = f"captures {self.path}"
        before = known.get(name) or {}
        settled = time.time_ns() - _SETTLED
        nodes, after = [], {}
        for file in self.files():
            status, _, digest = before.get(file.node, "").rpartition(" ")
            if status != file.status or file.problem:
                digest = self._digest(file)
            if digest and (status == file.status or file.changed < settled):
                after[file.node] = f"{file.status} {digest}"
            load = partial(self._captures, file)
            nodes.append(CapturedNode(name=file.node, capture=bytes.fromhex(digest), load=load))
        if after != before:
            known.put(name, after)
        return nodes

    def files(self) -> list[NodeFile]:
        """Return the files, sorted by node; nothing is read."""
        files: dict[str, NodeFile] = {}
        for file in self._listed():
            if (other := files.get(file.node)) is not None:
                problem = InvalidInputError(
                    f"is of the same node as {other.path.name}", where=_shown(file.path)
                )
                files[file.node] = replace(file, problem=problem)
                continue
            files[file.node] = file
            if len(files) > MAX_CAPTURES:
                raise InvalidInputError(
                    f"has more than {MAX_CAPTURES} files of nodes", where=str(self.path)
                )
        if not files:
            raise InvalidInputError(
                "has no files of nodes",
                where=str(self.path),
                hint="run 'localpuppet capture', or write NODE.yaml with the key 'facts'",
            )
        return [files[node] for node in sorted(files)]

    def read(self, file: NodeFile) -> NodeCapture:
        """Return the capture in a file."""
        data, where = self._bytes(file), _shown(file.path)
        node, suffix = NodeName.parse(file.node), file.path.suffix
        if suffix in _YAML:
            raw = Documents(None).parse(data, schema="capture", where=where)
        else:
            raw = parse_object(data, where=where, limit=self._limit, values=MAX_CAPTURE_VALUES)
        if suffix == _FACTS:
            return NodeCapture(node=node, facts=raw)
        if "facts" not in raw and "kernel" in raw:
            raise InvalidInputError(
                "has facts without the key 'facts'",
                where=where,
                hint="write them below 'facts', or give the file the ending .facts",
            )
        return NodeCapture.from_dict(raw, node=node, where=where)

    def _digest(self, file: NodeFile) -> str:
        """Return the digest of a file's bytes; empty if they cannot be read."""
        try:
            return hashlib.sha256(self._bytes(file)).hexdigest()
        except InvalidInputError:
            return ""  # `read` reports it

    def _bytes(self, file: NodeFile) -> bytes:
        """Return the bytes of a regular file.

        Unlike `read_user_file` it accepts files of other users: in a CI job, another user has often
        made the work tree, and a capture is data only.
        """
        if file.problem is not None:
            raise file.problem
        where, name = _shown(file.path), str(file.path.relative_to(self.path))
        with input_errors(Path(where)), self._tree() as tree:
            data = tree.read(name, most=self._limit + 1)
        if len(data) > self._limit:
            raise InvalidInputError(f"is too large: the limit is {self._limit} bytes", where=where)
        return data

    def _tree(self) -> OpenTree:
        return OpenTree(self.path, inside=self._inside)

    def _listed(self) -> Iterator[NodeFile]:
        with input_errors(self.path), self._tree() as tree:
            for name in sorted(os.listdir(tree.descriptor)):  # noqa: PTH208 - of a descriptor
                path = Path(name)
                if name.startswith("."):
                    continue
                if re.fullmatch(r"[0-9]+(\.[0-9]+)*", name):
                    for inner in self._version(tree, name):
                        yield self._file(tree, f"{name}/{inner}", f"{_system(inner)}.facter{name}")
                elif path.suffix in (_JSON, *_YAML):
                    yield self._file(tree, name, path.stem)
                elif path.suffix == _FACTS:
                    yield self._file(tree, name, _system(name))

    def _version(self, tree: OpenTree, name: str) -> list[str]:
        """Return the names of files in a directory of facterdb; none if it is no directory."""
        try:
            directory = tree.open(name)
        except (OSError, InvalidInputError):
            return []
        try:
            names = os.listdir(directory)  # noqa: PTH208
        except NotADirectoryError:
            return []
        finally:
            os.close(directory)
        return sorted(inner for inner in names if inner.endswith(_FACTS))

    def _file(self, tree: OpenTree, name: str, node: str) -> NodeFile:
        path = self.path / name
        where = _shown(path)
        try:
            with errors_at(where):
                NodeName.parse(node)
            with input_errors(Path(where)):
                descriptor = tree.open(name)
        except InvalidInputError as error:
            return NodeFile(node=_shown(Path(node))[:_MAX_SHOWN], path=path, problem=error)
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        times = status.st_mtime_ns, status.st_ctime_ns
        numbers = status.st_dev, status.st_ino, status.st_size, *times
        return NodeFile(
            node=node, path=path, status=" ".join(map(str, numbers)), changed=max(times)
        )


def write_capture(directory: Path, capture: NodeCapture) -> None:
    """Write a capture to a private file `NODE.json`; one that did not change leaves it alone.

    Raises:
        StateError: The disk refused.
        InvalidInputError: The capture is too large.
    """
    path, data = directory / f"{capture.node}.json", capture.to_bytes()
    with disk_errors(path):
        unchanged = path.is_file() and not path.is_symlink() and path.read_bytes() == data
        unchanged = unchanged and path.stat().st_mode & 0o777 == 0o600
    if not unchanged:
        write_durably(path, data)


def _shown(path: Path) -> str:
    """Return a path for messages, whatever its bytes are."""
    return one_line(os.fsencode(path).decode("utf-8", "backslashreplace"))


def _system(name: str) -> str:
    """Return a node's name for the name of a system: `windows-2012 r2-x86_64.facts`."""
    return re.sub("[^a-z0-9.-]+", "-", Path(name).stem.lower())
