"""Drop the parameters of a resource that a guarded policy line does not take.

- Parameters in `GUARDED` are dropped: they set a path, owner or mode, a command, or relationships
  to other resources of the catalog.
- `OF_TYPES` adds parameters by which a core type of Puppet reaches beyond its title, such as other
  names, other paths, or the content of a directory. docs/reference/guarded-lines.md lists both.
- The collector may set these parameters in its own block. A `target` is kept if the collector's
  condition requires exactly this value, as the author of the collector wrote it.
- A newline or `..` in the title or a remaining value leaves the resource out. The `content` may end
  in one newline, as rendered text does.
- A path as `ensure` of a `File` leaves it out as well: the file would be a link, and its content
  would be elsewhere.
"""

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass

from localpuppet.base.formats.values import Json
from localpuppet.fleet.exports.resource import ExportedResource, texts_in
from localpuppet.node.puppet.metaparameters import METAPARAMETERS

# Shell globs that match parameter names.
GUARDED = (
    # A policy line matches the title; `name` could differ from it.
    "name",
    "target",
    "path",
    "config_file",
    "*_dir",
    "owner",
    "group",
    "mode",
    "provider",
    "source",
    "command",
    "command_line",
    "onlyif",
    "unless",
    "refresh",
    "user",
    "*_cmd",
    *METAPARAMETERS,
)
# Collectors of fragments filter by this parameter. A filter by `path` or `name` would replace the
# line's title pattern, and a filter by `tag` would tag the resource on this node.
ASKED_FOR = "target"
# Core type → parameters of this type alone; other types use the same names for harmless values.
OF_TYPES: Mapping[str, frozenset[str]] = {
    kind: frozenset(names.split())
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
        "Package": "adminfile configfiles install_options package_settings responsefile root"
        " uninstall_options",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedResource:
    """A resource after a guarded line was applied.

    Attributes:
        parameters: The remaining parameters.
        dropped: Names of the dropped parameters, sorted.
        reason: Why the resource is left out; `None` if the line takes it.
    """

    parameters: Mapping[str, Json]
    dropped: tuple[str, ...]
    reason: str | None


def guard(resource: ExportedResource, asked: Mapping[str, Json]) -> GuardedResource:
    """Return what a guarded line takes of a resource.

    Args:
        resource: The resource as its node exports it.
        asked: The values that the collector's condition requires, by parameter.
    """
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
    """Return whether a guarded line drops a parameter.

    Args:
        parameter: The name of the parameter.
        kind: The type; empty for parameters dropped for every type.
    """
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
