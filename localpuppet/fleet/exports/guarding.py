"""What a guarded line takes of a resource.

Owns: the parameters that do not count, and the values that leave a resource out. Refuses to know:
signers and policies (`policy`), what becomes of the resource (`choosing`).

- The parameters in `GUARDED` do not count: they say what is written where, as which user, which
  program runs, or what else in the catalog is touched. `OF_TYPES` adds those by which one of
  Puppet's own types reaches beyond its title: other names, other paths, what is below a directory.
  docs/guarded.md lists both for each core type.
- The collector's own block may set them. A `target` whose very value the collector asks for counts:
  the collector's author wrote it.
- A newline or `..` in the title or in a value that is left leaves the resource out; a `content` may
  end in one newline, as every rendered text does. So does a path as `ensure` of a `File`: that
  makes a link, and what is below the link is elsewhere.
"""

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass

from localpuppet.base.formats.values import Json
from localpuppet.fleet.exports.resource import ExportedResource, texts_in
from localpuppet.node.puppet.metaparameters import METAPARAMETERS

# Shell globs over names of parameters.
GUARDED = (
    # A name that is not the title: a line's pattern is about the title.
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
# A collector of fragments asks for this parameter. A `path` or a `name` that is asked for would
# be what the line's pattern of titles is meant to say; a tag would tag the resource here, too.
ASKED_FOR = "target"
# Core type → parameters of this type alone; other types use the same names for harmless values.
OF_TYPES: Mapping[str, frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in {
        # A change may name any file by an absolute path.
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
        # Without `hasstatus`, a service is whatever process has `pattern` in its command line.
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
# Dropped without a loss, so that no report names it: a collector sees the tags all the same.
UNREPORTED = frozenset(("tag",))
# The text of a file or of a fragment.
CONTENT = "content"
_GUARDED = re.compile("|".join(map(fnmatch.translate, GUARDED)))
_ESCAPES = re.compile(r"\n|\r|\.\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedResource:
    """What a guarded line takes of a resource.

    Attributes:
        parameters: The parameters that count.
        dropped: Names of the parameters that do not count, sorted.
        reason: Why the resource is left out; `None` if the line takes it.
    """

    parameters: Mapping[str, Json]
    dropped: tuple[str, ...]
    reason: str | None


def guard(resource: ExportedResource, asked: Mapping[str, Json]) -> GuardedResource:
    """Return what a guarded line takes of a resource.

    Args:
        resource: The resource, as its node exports it.
        asked: The values that the collector asks for, by parameter.
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
        kind: The type; empty for what guarded drops of every type.
    """
    return _GUARDED.match(parameter) is not None or parameter in OF_TYPES.get(kind, ())


def _is_asked(name: str, value: Json, asked: Mapping[str, Json]) -> bool:
    """Return whether a collector asks for this very text, and for no other."""
    return name == ASKED_FOR and isinstance(value, str) and asked.get(name) == value


def _escape(kind: str, title: str, kept: Mapping[str, Json]) -> str | None:
    """Return why a resource with these parameters reaches beyond its line, or `None`."""
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
