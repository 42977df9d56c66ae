"""The root keys of a data file for Hiera, each with a digest of its value.

    {"ntp::servers": [...], "lookup_options": {...}}  ->  two digests

Two files with the same digest for a key give the same answer for it. A file counts as a whole
(`None`) if its keys are not independent of each other: it is not a mapping, a key exists twice or
is not text, or it has a tag, a merge key or a date, which makes Puppet reject the whole file.

- Spelling and quotes count: `1`, `"1"` and `01` differ.
- libyaml, which Ruby uses as well, parses YAML.
- An alias counts as what it names.
- Of a module's `metadata.json`, `MODULE` is the digest of what Puppet uses to compile: the names of
  the dependencies in their order, and `data_provider`. A missing file counts as one without them.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import yaml

from localpuppet.base.formats.strict_json import has_more_values

# Larger files, and such with more values, count as a whole.
MAX_BYTES = 8 * 1024 * 1024
MAX_VALUES = 400_000
_SUFFIXES = {"yaml": "yaml", "yml": "yaml", "json": "json"}
# Plain text that Ruby reads as a date, a time or a symbol: Puppet rejects the file, whatever the
# key.
_REJECTED = re.compile(r"-?\d{4}-\d|:")
# Plain text that may be a key of another type than text.
_ODD_KEY = re.compile(
    r"(?:|~|null|true|false|yes|no|on|off|y|n|=|<<|[-+]?\.(?:nan|inf)|[-+.:]?\d.*)\Z", re.IGNORECASE
)
_MERGE = "<<"
METADATA = "metadata.json"
# The key of what Puppet uses of a module's metadata.
MODULE = "?module"
# Without a value for each of them, Puppet rejects the module.
_REQUIRED = ("author", "dependencies", "license", "source", "version")
# Ruby reads 100 levels.
_MAX_DEPTH = 64


class _WholeError(ValueError):
    """The file counts as a whole."""


def key_digests(name: str, data: bytes) -> Mapping[str, str] | None:
    """Return root key → digest of its value; `None` if the file counts as a whole.

    Args:
        name: The file's name, whose suffix tells its format.
        data: Its bytes.
    """
    kind = _SUFFIXES.get(name.rpartition(".")[2])
    if kind is None or len(data) > MAX_BYTES:
        return None
    try:
        if kind != "json":
            return _of_yaml(data)
        return _of_json(data, is_metadata=name.rpartition("/")[2] == METADATA)
    except (ValueError, yaml.YAMLError, RecursionError):
        return None


class _Members(list[tuple[str, object]]):
    """The members of a JSON object in their order, duplicates included."""


def missing_digests(name: str) -> Mapping[str, str] | None:
    """Return what `key_digests` returns for a missing file; `None` if only its absence counts.

    Args:
        name: The file's name.
    """
    return {MODULE: _module_digest([])} if name.rpartition("/")[2] == METADATA else None


def _of_json(data: bytes, *, is_metadata: bool) -> dict[str, str]:
    if has_more_values(data, MAX_VALUES):
        raise _WholeError
    raw = json.loads(  # noqa: TID251 - spelling counts, and depth raises RecursionError
        data.decode("utf-8"),
        object_pairs_hook=_Members,
        parse_int=lambda digits: {"number": digits},
        parse_float=lambda digits: {"number": digits},
        parse_constant=_refuse,
    )
    if not isinstance(raw, _Members):
        raise _WholeError
    digests = {key: _digest("json", json.dumps(_unlike(value))) for key, value in raw}
    if len(digests) != len(raw) or MODULE in digests:
        raise _WholeError
    return {**digests, MODULE: _module_digest(raw)} if is_metadata else digests


def _module_digest(members: Sequence[tuple[str, object]]) -> str:
    """Return the digest of what Puppet uses of a module's metadata.

    Puppet takes an empty object as no metadata, and both as no dependencies. These decide only
    which modules it searches first.

    Raises:
        _WholeError: Puppet rejects the metadata, or they have a form that it does not expect.
    """
    metadata = dict(members)
    required = [metadata.get(key) for key in _REQUIRED]
    dependencies = metadata.get("dependencies", [])
    name = metadata.get("name")
    if members and (None in required or not isinstance(name, str | None)):
        raise _WholeError
    if not isinstance(dependencies, list) or isinstance(dependencies, _Members):
        raise _WholeError
    names = []
    for dependency in dependencies:
        other = dict(dependency).get("name") if isinstance(dependency, _Members) else None
        if not isinstance(other, str):
            raise _WholeError
        names.append(other)
    provider = _unlike(metadata.get("data_provider"))
    return _digest("module", json.dumps([names, provider]))


def _unlike(value: object, depth: int = 2) -> object:
    """Return a value in which an object, a list and a number never look alike."""
    if depth > _MAX_DEPTH:
        raise _WholeError
    if isinstance(value, _Members):
        return {"object": [[key, _unlike(item, depth + 1)] for key, item in value]}
    if isinstance(value, list):
        return [_unlike(item, depth + 1) for item in value]
    return value


def _refuse(text: str) -> object:
    raise _WholeError(text)


def _digest(*parts: str) -> str:
    form = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        form.update(b"%d:" % len(data) + data)
    return form.hexdigest()


def _of_yaml(data: bytes) -> dict[str, str]:
    data.decode("utf-8")  # libyaml would also read UTF-16, which Puppet rejects
    events = _bounded(yaml.parse(data, Loader=yaml.CSafeLoader))
    for event in events:
        if isinstance(event, yaml.MappingStartEvent):
            if event.tag is not None or event.anchor is not None:
                raise _WholeError
            digests = _YamlForms().root(events)
            ended = [type(other) for other in events]
            if ended != [yaml.DocumentEndEvent, yaml.StreamEndEvent]:
                raise _WholeError  # several documents
            return digests
        if not isinstance(event, yaml.StreamStartEvent | yaml.DocumentStartEvent):
            break
    raise _WholeError


def _bounded(events: Iterable[yaml.Event]) -> Iterator[yaml.Event]:
    for count, event in enumerate(events):
        if count > MAX_VALUES:
            raise _WholeError
        yield event


class _YamlForms:
    """Digests of YAML values, without recursion."""

    def __init__(self) -> None:
        self._anchors: dict[str, str] = {}

    def root(self, events: Iterator[yaml.Event]) -> dict[str, str]:
        """Return the members of the root mapping, whose start was read."""
        digests: dict[str, str] = {}
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                return digests
            if not isinstance(event, yaml.ScalarEvent) or event.value in digests:
                raise _WholeError
            self._scalar(event, is_key=True)
            if event.value == _MERGE:
                raise _WholeError
            digests[event.value] = self._value(next(events), events)
        raise _WholeError

    def _value(self, event: yaml.Event, events: Iterator[yaml.Event]) -> str:
        """Return the digest of the value that starts with an event."""
        open_: list[tuple[str, str | None, list[str]]] = []
        while True:
            form = self._form(event, open_)
            if form is not None:
                if not open_:
                    return form
                open_[-1][2].append(form)
            event = next(events)

    def _form(
        self, event: yaml.Event, open_: list[tuple[str, str | None, list[str]]]
    ) -> str | None:
        """Return the digest of a value that ends with this event, or `None`."""
        match event:
            case yaml.ScalarEvent():
                is_key = bool(open_) and open_[-1][0] == "mapping" and len(open_[-1][2]) % 2 == 0
                return self._name(event.anchor, self._scalar(event, is_key=is_key))
            case yaml.AliasEvent():
                if event.anchor not in self._anchors:
                    raise _WholeError
                return self._anchors[event.anchor]
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                if event.tag is not None:
                    raise _WholeError
                kind = "mapping" if isinstance(event, yaml.MappingStartEvent) else "sequence"
                if event.anchor is not None:
                    self._anchors.pop(event.anchor, None)  # nothing in it may name it
                open_.append((kind, event.anchor, []))
                return None
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                kind, anchor, forms = open_.pop()
                return self._name(anchor, _digest(kind, *forms))
        raise _WholeError

    def _name(self, anchor: str | None, form: str) -> str:
        if anchor is not None:
            self._anchors[anchor] = form
        return form

    def _scalar(self, event: yaml.ScalarEvent, *, is_key: bool) -> str:
        if event.tag is not None:
            raise _WholeError
        plain = event.style in (None, "")
        if plain and _REJECTED.match(event.value):
            raise _WholeError
        if is_key and plain and event.value != _MERGE and _ODD_KEY.match(event.value):
            raise _WholeError
        return _digest("plain" if plain else "quoted", event.value)
