"""Exported resources as a catalog declares them, and their packed form.

- A title, a tag and a file name are one line without control characters. Names of types and
  parameters follow Puppet's grammar.
- A value is JSON, or Puppet's form of a binary: `{"__ptype": "Binary", "__pvalue": BASE64}`. Other
  mappings with the key `__ptype` are rejected, so that an exporter cannot choose the class of a
  value.
- A resource has at most `MAX_EXPORTED_RESOURCE` bytes of JSON.
- The resources are ASCII JSON, sorted by type and title, compressed with zlib; `inventory.chunks`
  transfers them.
- The node's signed inventory entry contains the digest and the size of the packed bytes; the bytes
  are unpacked only after the digest is verified.
- A duplicate resource is rejected.
"""

import base64
import binascii
import fnmatch
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from localpuppet.base.errors import InvalidInputError, check_limit, errors_at
from localpuppet.base.formats.converter import ALWAYS, AllowedRange, JsonForm, Message
from localpuppet.base.formats.packed import unpacked
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.formats.text import listed, one_line, parse_line
from localpuppet.base.formats.values import Json, mapping_of, wrong_type
from localpuppet.base.value import Value
from localpuppet.fleet.bus import bus_limits as limits
from localpuppet.fleet.inventory.chunks import digest_of
from localpuppet.node.puppet.types import METAPARAMETERS

BINARY = "Binary"
_TYPE = re.compile(r"[A-Z][a-z0-9_]*(?:::[A-Z][a-z0-9_]*)*\Z")
_PARAMETER = re.compile(r"[a-z_][A-Za-z0-9_]*\Z")
_SHOWN = 60


# Shell globs that match parameter names.
GUARDED = (
    # A policy line matches the title; `name` could differ from it.
    "name",
    *listed(
        "target path config_file *_dir owner group mode provider source command command_line "
        "onlyif unless refresh user *_cmd"
    ),
    *METAPARAMETERS,
)
# Collectors of fragments filter by this parameter. A filter by `path` or `name` would replace the
# line's title pattern, and a filter by `tag` would tag the resource on this node.
ASKED_FOR = "target"
# Core type → parameters of this type alone; other types use the same names for harmless values.
OF_TYPES: Mapping[str, frozenset[str]] = {
    kind: frozenset(listed(names))
    for kind, names in {
        # A change can name any file by its absolute path.
        "Augeas": "changes context force incl lens load_path root type_check",
        "Cron": "environment",
        "Exec": "cwd environment",
        "File": "force ignore links max_files purge recurse recurselimit source_permissions"
        " sourceselect staging_location",
        "Group": "allowdupe",
        "Host": "host_aliases",
        "Mailalias": "file",
        # OpenVox 9 has `environment`.
        "Package": "adminfile configfiles environment install_options package_settings responsefile"
        " root uninstall_options",
        "Resources": "purge",
        "Scheduled_task": "arguments",
        "Selmodule": "selmoduledir selmodulepath",
        # Without `hasstatus`, Puppet manages any process whose command line matches `pattern`.
        "Service": "binary control flags hasrestart hasstatus logonaccount logonpassword manifest"
        " pattern restart start status stop",
        "Ssh_authorized_key": "drop_privileges",
        "Sshkey": "host_aliases",
        "Tidy": "max_files recurse rmdirs",
        "User": "allowdupe home purge_ssh_keys",
        "Zfs": "mountpoint",
        "Zone": "create_args install_args",
    }.items()
}
# Dropped but not reported: a collector sees the tags anyway.
UNREPORTED = frozenset(("tag",))
# The text of a file or a fragment.
CONTENT = "content"
_GUARDED = re.compile("|".join(map(fnmatch.translate, GUARDED)))
_ESCAPES = re.compile(r"\n|\r|\.\.")


def reference(kind: str, title: str) -> str:
    """Return the reference of a resource, not shortened."""
    return f"{kind}[{title}]"


def parse_type(text: str) -> str:
    """Return a valid type name; each part is capitalised as in Puppet's references."""
    if len(text) > limits.MAX_RESOURCE_TYPE or not _TYPE.match(text):
        raise InvalidInputError(f"{one_line(text)[:_SHOWN]!r} is not the name of a type")
    return text


def named_type(text: str) -> str:
    """Return the name of a type that is written in any case: `concat::fragment`."""
    return parse_type("::".join(part.capitalize() for part in text.split("::")))


def parse_title(text: str) -> str:
    """Return a valid title: one line of at most 1 KiB without control characters."""
    return parse_line(text, what="title")


def texts_in(value: Json) -> Iterator[str]:
    """Yield every text in a value, including keys and the decoded text of binaries."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
    elif isinstance(value, dict):
        if value.get("__ptype") == BINARY:
            yield base64.b64decode(str(value["__pvalue"])).decode("latin-1")
            return
        for key, item in value.items():
            yield key
            yield from texts_in(item)


def _file(text: str) -> str:
    return parse_line(text, what="file")


def _tag(text: str) -> str:
    return parse_line(text, what="tag").lower()


def _parameters(raw: Json) -> Mapping[str, Json]:
    if not isinstance(raw, dict):
        raise wrong_type(raw, "a mapping", "")
    if len(raw) > limits.MAX_RESOURCE_PARAMETERS:
        raise InvalidInputError(f"has more than {limits.MAX_RESOURCE_PARAMETERS} parameters")
    for name, value in raw.items():
        if not _PARAMETER.match(name):
            raise InvalidInputError(f"{one_line(name)[:_SHOWN]!r} is not the name of a parameter")
        with errors_at(name):
            _check(value)
    return raw


def _check(value: Json) -> None:
    if isinstance(value, list):
        for item in value:
            _check(item)
    elif isinstance(value, dict):
        if "__ptype" in value or "__pvalue" in value:
            _check_binary(value)
        for item in value.values():
            _check(item)


def _check_binary(value: Mapping[str, Json]) -> None:
    data = value.get("__pvalue")
    if set(value) != {"__ptype", "__pvalue"} or value["__ptype"] != BINARY:
        raise InvalidInputError("is of a type of Puppet's that cannot be exported")
    try:
        base64.b64decode(data if isinstance(data, str) else "-", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInputError("is not a binary in base64") from error


class ExportedResource(Message):
    """A resource that a node exports, with sorted tags in lower case, and without its title."""

    type: Annotated[str, parse_type]
    title: Annotated[str, parse_title]
    tags: Annotated[
        tuple[Annotated[str, _tag], ...], AllowedRange(maximum=limits.MAX_RESOURCE_TAGS)
    ]
    file: Annotated[str, _file] | None
    line: Annotated[int, AllowedRange(minimum=0)] | None
    parameters: Annotated[Mapping[str, Json], JsonForm(_parameters)]
    since: Annotated[float, ALWAYS] = 0.0

    @classmethod
    def read(cls, raw: object, *, where: str = "") -> "ExportedResource":
        """Return the resource in a JSON object; an error names the resource."""
        try:
            resource = super().read(raw, where=where)
            return replace(resource, tags=tuple(sorted(set(resource.tags)))).checked()
        except InvalidInputError as error:
            given = mapping_of(raw)
            name = one_line(reference(str(given.get("type")), str(given.get("title"))))
            raise error.at(name[: 4 * _SHOWN]) from error

    @classmethod
    def parse_again(cls, raw: Mapping[str, Any]) -> "ExportedResource":
        """Return a resource that `read` accepted before, in a tenth of its time."""
        try:
            return cls(**{**raw, "tags": tuple(raw["tags"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a resource: {error}") from error

    @property
    def ref(self) -> str:
        """Return its reference: `File[/etc/motd]`."""
        return reference(self.type, self.title)

    @property
    def place(self) -> str:
        """Return where it is declared: `/etc/puppet/modules/a/init.pp:3`; empty if unknown."""
        if self.file is None:
            return ""
        return one_line(self.file if self.line is None else f"{self.file}:{self.line}")

    def checked(self) -> "ExportedResource":
        """Return the resource; raise `InvalidInputError` if it is too large."""
        size = len(json.dumps(self.to_dict(), ensure_ascii=False).encode("utf-8", "replace"))
        hint = "export a path or URL of the content instead"
        check_limit(size, limits.MAX_EXPORTED_RESOURCE, hint=hint)
        return self


class Offer(Value):
    """A resource, the node that exports it, and the bytes of its JSON; 0 if not counted."""

    node: str
    resource: ExportedResource
    size: int = 0


class GuardedResource(Value):
    """A resource after a guarded line was applied; without a reason, the line takes it."""

    parameters: Mapping[str, Json]
    dropped: tuple[str, ...]
    reason: str | None


def guard(resource: ExportedResource, asked: Mapping[str, Json]) -> GuardedResource:
    """Return what a guarded line takes of a resource."""
    dropped = tuple(
        sorted(
            name
            for name, value in resource.parameters.items()
            if is_guarded(name, resource.type) and not _is_asked(name, value, asked)
        )
    )
    kept = {name: value for name, value in resource.parameters.items() if name not in dropped}
    reason = _escape(resource.type, resource.title, kept)
    return GuardedResource(parameters=kept, dropped=dropped, reason=reason)


def is_guarded(parameter: str, kind: str = "") -> bool:
    """Return whether a guarded line drops a parameter: of every type, or of that kind."""
    return _GUARDED.match(parameter) is not None or parameter in OF_TYPES.get(kind, ())


def _is_asked(name: str, value: Json, asked: Mapping[str, Json]) -> bool:
    """Return whether the collector's condition requires exactly this value."""
    return name == ASKED_FOR and isinstance(value, str) and asked.get(name) == value


def _escape(kind: str, title: str, kept: Mapping[str, Json]) -> str | None:
    """Return why a resource reaches beyond its policy line, or `None`."""
    if _ESCAPES.search(title):
        return "its title has '..'"
    if kind == "File" and any("/" in text for text in texts_in(kept.get("ensure"))):
        return "its ensure is a path"
    for name, value in kept.items():
        if name == CONTENT and isinstance(value, str):
            value = value.removesuffix("\n")
        if any(_ESCAPES.search(text) for text in texts_in(value)):
            return f"its {name} has a newline or '..'"
    return None


SCHEMA = 1

_WHERE = "exports"


class _Exports(Message):
    SCHEMA, IS_OPEN = 1, True
    resources: Annotated[tuple[Json, ...], AllowedRange(maximum=limits.MAX_EXPORTED_RESOURCES)]


class PackedResources(Value):
    """All exported resources of a node, packed for the bus; empty for none."""

    data: bytes
    digest: str
    count: int


def pack(resources: Iterable[ExportedResource]) -> PackedResources:
    """Return resources packed for the bus; raise `InvalidInputError` above a limit."""
    in_order = sorted(resources, key=lambda resource: (resource.type, resource.title))
    if not in_order:
        return PackedResources(data=b"", digest="", count=0)
    _check_count(len(in_order))
    listed = [resource.to_dict() for resource in in_order]
    data = json.dumps({"schema": SCHEMA, "resources": listed}, separators=(",", ":")).encode()
    _check_size(len(data), limits.MAX_EXPORTS, "as JSON")
    packed = zlib.compress(data)
    _check_size(len(packed), limits.MAX_PACKED_EXPORTS, "packed")
    return PackedResources(data=packed, digest=digest_of(packed), count=len(in_order))


def unpack(data: bytes) -> tuple[ExportedResource, ...]:
    """Return the resources in packed bytes; raise `InvalidInputError` if malformed or too large."""
    _check_size(len(data), limits.MAX_PACKED_EXPORTS, "packed")
    try:
        text = unpacked(data, most=limits.MAX_EXPORTS)
    except ValueError as error:
        raise InvalidInputError(f"are malformed: {error}", where=_WHERE) from error
    if not text.isascii():  # one non-ASCII letter makes Python's text take four times the memory
        raise InvalidInputError("are malformed: not ASCII, as JSON with escapes is", where=_WHERE)
    return read(text)


def read(data: bytes) -> tuple[ExportedResource, ...]:
    """Return the resources in untrusted JSON; raise `InvalidInputError` if any is invalid."""
    raw = parse_object(
        data, where=_WHERE, limit=limits.MAX_EXPORTS, values=limits.MAX_EXPORTED_VALUES
    )
    return parse_resources(raw, where=_WHERE)


def parse_resources(raw: object, *, where: str) -> tuple[ExportedResource, ...]:
    """Return the resources in a list of exports; reject duplicates."""
    by_reference: dict[tuple[str, str], ExportedResource] = {}
    for item in _Exports.read(raw, where=where).resources:
        resource = ExportedResource.read(item)
        if (resource.type, resource.title) in by_reference:
            raise InvalidInputError("is a duplicate", where=resource.ref)
        by_reference[(resource.type, resource.title)] = resource
    return tuple(by_reference.values())


def aged(
    resources: Iterable[ExportedResource],
    before: Iterable[ExportedResource],
    *,
    now: float,
) -> list[ExportedResource]:
    """Return resources with the time at which the node first exported each."""
    known: Mapping[str, float] = {earlier.ref: earlier.since for earlier in before}
    return [replace(resource, since=known.get(resource.ref, now)) for resource in resources]


def _check_count(count: int) -> None:
    most, what = limits.MAX_EXPORTED_RESOURCES, "exceed the limit"
    check_limit(count, most, what=what, unit="resources", where=_WHERE)


def _check_size(size: int, limit: int, form: str) -> None:
    hint = "export fewer or smaller resources"
    check_limit(size, limit, what="are too large", unit=f"bytes {form}", where=_WHERE, hint=hint)
