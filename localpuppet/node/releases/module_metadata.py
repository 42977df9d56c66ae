"""The metadata of modules: what a release lacks, and which OpenVox or Puppet they are made for.

Unreadable metadata requires nothing here: Puppet reports what is wrong with it.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line
from localpuppet.node.releases.limits import MAX_METADATA
from localpuppet.node.releases.module_versions import ModuleVersion, Range

METADATA = "metadata.json"
# By the name in `requirements`, what people call it.
IMPLEMENTATIONS = {"openvox": "OpenVox", "puppet": "Puppet"}


def read_metadata(module: Path) -> dict[str, object] | None:
    """Return the metadata of a module, in any form that Puppet reads.

    `None` if its file is missing or larger than 1 MiB.
    """
    file = module / METADATA
    if not file.is_file() or file.stat().st_size > MAX_METADATA:
        return None
    try:
        metadata = loads(file.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InvalidInputError("is not JSON", where=METADATA) from error
    if not isinstance(metadata, dict):
        raise InvalidInputError("is not a JSON object", where=METADATA)
    return metadata


def unmet(directories: Mapping[str, Path], *, implementation: str, version: str) -> tuple[str, ...]:
    """Return the unmet dependencies and requirements of modules by name, as texts.

    A key of `IMPLEMENTATIONS` parses them.
    """
    modules: dict[str, Mapping[str, object]] = {}
    for name in sorted(directories):
        modules[name] = {}
        with suppress(OSError, InvalidInputError):
            modules[name] = read_metadata(directories[name]) or {}
    problems = []
    others: dict[str, list[str]] = {}
    for name, metadata in modules.items():
        for item in _items(metadata, "dependencies"):
            problem = _problem(item, modules)
            if problem:
                problems.append(f"{name}: {METADATA} requires {problem}")
        required = requirement(metadata, implementation)
        # A release candidate counts as its version.
        if required and not _is_in(version.partition("-")[0], required[1]):
            others.setdefault(" ".join(required), []).append(name)
    here = f"{IMPLEMENTATIONS.get(implementation, 'Puppet')} {version}"
    problems += [
        f"{', '.join(names)}: {METADATA} requires {wanted}, and this machine has {here}"
        " (lock versions that are made for it)"
        for wanted, names in others.items()
    ]
    return tuple(map(one_line, problems))


def requirement(metadata: Mapping[str, object], implementation: str) -> tuple[str, str] | None:
    """Return the requirement that counts for an implementation: its name and its range.

    If no requirement names the implementation, one that names the other counts: OpenVox continues
    the versions of Puppet.
    """
    ranges = {
        str(item.get("name")): str(item.get("version_requirement") or "")[:200]
        for item in _items(metadata, "requirements")
    }
    named = [name for name in (implementation, *IMPLEMENTATIONS) if name in ranges]
    return (named[0], ranges[named[0]]) if named else None


def _items(metadata: Mapping[str, object], key: str) -> Iterator[Mapping[str, object]]:
    asked = metadata.get(key)
    yield from (
        item for item in (asked if isinstance(asked, list) else []) if isinstance(item, dict)
    )


def _is_in(version: str, wanted: str) -> bool:
    """Return whether a range has a version; also true without a range, or if one is malformed."""
    try:
        found = ModuleVersion.parse(version, where="")
        return not wanted or Range.parse(wanted, where="").has(found)
    except InvalidInputError:
        return True


def _problem(item: Mapping[str, object], modules: Mapping[str, Mapping[str, object]]) -> str:
    asked = str(item.get("name", ""))[:120]
    wanted = str(item.get("version_requirement") or "")[:200]
    module = asked.replace("/", "-", 1).partition("-")[2]
    if module not in modules:
        return (
            f"{asked} {wanted}, which the release lacks".replace(" ,", ",")
            + " (add it to 'modules:' in manifest.yaml, then run 'localpuppet release lock')"
        )
    version = str(modules[module].get("version"))
    if _is_in(version, wanted):
        return ""
    return f"{asked} {wanted}, and the release has {version} (change a version in manifest.yaml)"
