"""Parses `environment.conf` of a control repository, as far as a release supports it.

Every directory of the result is inside the release. Unsupported settings are listed in the notes.
"""

import re

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.value import Value
from localpuppet.node.releases.manifest import MAX_DIRECTORIES, parse_inner_path

FILE = "environment.conf"
BASE = "$basemodulepath"
MODULEDIR = "modules"
MANIFESTS = "manifests"
# Where Puppet looks for functions and data types that every module may use; nothing else of these
# directories counts: types, providers and facts come from modules.
CODE_DIRECTORIES = ("functions", "lib", "types")
# Where control repositories have modules of their own.
SITE_DIRECTORIES = ("site", "site-modules", "dist", MODULEDIR)
_LINE = re.compile(r"\s*([a-z_]+)\s*=\s*(.*?)\s*\Z")
_CODEDIR = re.compile(r"\$(?:environment|codedir|confdir)\b.*\Z")


class EnvironmentConf(Value):
    """The settings of an `environment.conf`.

    Attributes:
        modulepath: Directories inside the release, and `$basemodulepath` at its position.
        manifest: The site manifest, a file or directory inside the release.
        notes: Messages about unsupported settings.
    """

    modulepath: tuple[str, ...]
    manifest: str
    notes: tuple[str, ...]


def parse_environment(text: str, *, moduledir: str = MODULEDIR) -> EnvironmentConf:
    """Return the settings of an `environment.conf`; an empty one has Puppet's defaults.

    Args:
        text: The file.
        moduledir: The directory of single modules; on the modulepath if the file names none.
    """
    settings: dict[str, str] = {}
    notes: list[str] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", ";", "[")):
            continue
        match = _LINE.match(line)
        if match is None:
            notes.append(f"line {number} is not a setting (write NAME = VALUE)")
        else:
            settings[match[1]] = match[2].strip("'\"")
    path = _modulepath(settings.get("modulepath", f"{moduledir}:{BASE}"), notes)
    manifest = _inside(settings.get("manifest", MANIFESTS), "manifest", notes)
    for name in sorted(set(settings) - {"modulepath", "manifest", "config_version"}):
        if name == "environment_timeout":
            notes.append("environment_timeout is not needed: each run reads the release again")
        else:
            notes.append(f"{name} is not used (remove it)")
    if settings.get("config_version"):
        notes.append("config_version is not run: the release's name is the version")
    return EnvironmentConf(
        modulepath=path,
        manifest=manifest or MANIFESTS,
        notes=tuple(notes),
    )


def _modulepath(text: str, notes: list[str]) -> tuple[str, ...]:
    directories: list[str] = []
    for part in filter(None, re.split(r"[:;]", text)):
        entry = part.strip()
        path = BASE if entry == BASE else _inside(entry, "modulepath", notes)
        if path and path not in directories:
            directories.append(path)
    if len(directories) > MAX_DIRECTORIES:
        notes.append(f"modulepath has more than {MAX_DIRECTORIES} directories: the rest is left")
    return tuple(directories[:MAX_DIRECTORIES])


def _inside(text: str, setting: str, notes: list[str]) -> str:
    try:
        return parse_inner_path(text, where="") or "."
    except InvalidInputError:
        what = "names another directory of Puppet" if _CODEDIR.match(text) else "leaves the release"
        notes.append(f"{setting}: {text[:60]!r} {what}")
        return ""
