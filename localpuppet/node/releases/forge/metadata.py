"""Compares the dependencies in modules' `metadata.json` with the modules of a release.

Unreadable metadata has no dependencies here: Puppet reports what is wrong with it.
"""

from collections.abc import Mapping
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.releases.forge.archive import MAX_METADATA, METADATA, read_metadata
from localpuppet.node.releases.forge.versions import ModuleVersion, Range


def read_file(module: Path) -> Mapping[str, object]:
    """Return the metadata of a module in a directory; empty if it is missing or unreadable."""
    file = module / METADATA
    try:
        if not file.is_file() or file.stat().st_size > MAX_METADATA:
            return {}
        return read_metadata(file.read_bytes())
    except (OSError, InvalidInputError):
        return {}


def unmet(modules: Mapping[str, Mapping[str, object]]) -> tuple[str, ...]:
    """Return the unmet dependencies of modules, as texts.

    Args:
        modules: The release's modules by name, with their metadata.
    """
    problems = []
    for name in sorted(modules):
        asked = modules[name].get("dependencies")
        for item in asked if isinstance(asked, list) else []:
            if isinstance(item, dict):
                problem = _problem(item, modules)
                if problem:
                    problems.append(f"{name}: {METADATA} requires {problem}")
    return tuple(problems)


def _problem(item: Mapping[str, object], modules: Mapping[str, Mapping[str, object]]) -> str:
    asked = str(item.get("name", ""))[:120]
    wanted = str(item.get("version_requirement") or "")[:200]
    module = asked.replace("/", "-", 1).partition("-")[2]
    if module not in modules:
        return (
            f"{asked} {wanted}, which the release lacks".replace(" ,", ",")
            + " (add it to 'modules:' in manifest.yaml, then run 'localpuppet release lock')"
        )
    try:
        if not wanted:
            return ""
        version = ModuleVersion.parse(str(modules[module].get("version")), where="")
        if Range.parse(wanted, where="").has(version):
            return ""
    except InvalidInputError:
        return ""  # the version or the range is malformed
    return f"{asked} {wanted}, and the release has {version} (change a version in manifest.yaml)"
