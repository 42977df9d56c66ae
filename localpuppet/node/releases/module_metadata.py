"""The metadata of modules, their versions, and ranges of versions.

They say what a release lacks, and which OpenVox or Puppet modules are made for. Unreadable metadata
requires nothing here: Puppet reports what is wrong with it.

A version is that of Semantic Versioning 2.0.0. A range is `latest`, one version, or comparators:
`>= 1.0.0 < 2.0.0`, `1.x`, `1.2.x`, `~ 1.2`, `^ 1.2`, `1.0.0 - 2.0.0`, joined by `||`. A pre-release
is in a range only if the range names one of the same version, as for Puppet and npm.

    newest(Range.parse(">= 1.0.0 < 2.0.0"), versions)
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line
from localpuppet.node.releases.limits import MAX_METADATA, MAX_METADATA_TEXT

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
            if problem := _problem(item, modules):
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
        found = ModuleVersion.parse(version)
        return not wanted or Range.parse(wanted).has(found)
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


LATEST = "latest"
_VERSION = re.compile(
    r"(0|[1-9]\d{0,9})\.(0|[1-9]\d{0,9})\.(0|[1-9]\d{0,9})"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?\Z",
    re.ASCII,
)
_PARTIAL = re.compile(r"(\d{1,10}|[xX*])(?:\.(\d{1,10}|[xX*]))?(?:\.(\d{1,10}|[xX*]))?\Z", re.ASCII)
_COMPARATOR = re.compile(r"(>=|<=|>|<|=|~>|~|\^)?\s*([0-9xX*][0-9A-Za-z.*+-]*)\Z", re.ASCII)
_JOIN = re.compile(r"(>=|<=|>|<|=|~>|~|\^)\s+")
_HYPHEN = re.compile(r"(\S+)\s+-\s+(\S+)\Z")

_Order = tuple[int, int, int, tuple[tuple[int, int, str], ...]]
_Test = Callable[["_Order"], bool]


class ModuleVersion(str):
    """One exact version; ordered by `order`, not as text."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str, *, where: str = "") -> "ModuleVersion":
        if len(text) > MAX_METADATA_TEXT or not _VERSION.match(text):
            raise InvalidInputError(
                f"{text[:40]!r} is not a version",
                where=where,
                hint="MAJOR.MINOR.PATCH, such as 9.4.1",
            )
        return cls(text)

    @property
    def order(self) -> _Order:
        """The sort key of the version; build metadata does not count."""
        if (match := _VERSION.match(self)) is None:
            raise ValueError(f"{self!r} was not parsed")
        # A version follows its pre-releases: (2, …) is greater than any of their identifiers.
        pre = match[4].split(".") if match[4] else None
        marks = tuple(_mark(part) for part in pre) if pre else ((2, 0, ""),)
        return int(match[1]), int(match[2]), int(match[3]), marks

    @property
    def is_final(self) -> bool:
        """Whether the version is not a pre-release."""
        return self.order[3] == ((2, 0, ""),)


def _mark(part: str) -> tuple[int, int, str]:
    return (0, int(part), "") if part.isdigit() else (1, 0, part)


@dataclass(frozen=True, slots=True)
class Range:
    """A range of versions; pre-releases of a version count if it names one of these."""

    text: str
    alternatives: tuple[tuple[_Test, ...], ...]
    prereleases: frozenset[tuple[int, ...]]

    @classmethod
    def parse(cls, text: str, *, where: str = "") -> "Range":
        try:
            if len(text) > MAX_METADATA_TEXT:
                raise ValueError("too long")
            parts = [] if text.strip() == LATEST else text.split("||")
            alternatives = tuple(tuple(_conditions(part.strip())) for part in parts) or ((),)
        except ValueError as error:
            raise InvalidInputError(
                f"{text[:60]!r} is not a version or a range of versions",
                where=where,
                hint="write 9.4.1, latest, 9.x or '>= 9.0.0 < 10.0.0'",
            ) from error
        named = frozenset(
            ModuleVersion(version).order[:3]
            for version in re.split(r"[\s<>=~^|]+", text)
            if "-" in version and _VERSION.match(version)
        )
        return cls(text=text, alternatives=alternatives, prereleases=named)

    @property
    def exact(self) -> ModuleVersion | None:
        """The only version in the range; `None` if it has more."""
        text = self.text.strip().removeprefix("=").strip()
        return ModuleVersion(text) if _VERSION.match(text) else None

    def has(self, version: ModuleVersion) -> bool:
        if self.exact is not None:
            return version.order == self.exact.order
        order = version.order
        if not version.is_final and order[:3] not in self.prereleases:
            return False
        return any(all(test(order) for test in tests) for tests in self.alternatives)


def newest(wanted: Range, versions: Iterable[ModuleVersion]) -> ModuleVersion | None:
    """Return the highest version in a range, or `None`."""
    return max(
        (version for version in versions if wanted.has(version)),
        key=lambda version: version.order,
        default=None,
    )


def _conditions(text: str) -> list[_Test]:
    if hyphen := _HYPHEN.match(text):
        return [*_comparator(f">={hyphen[1]}"), *_comparator(f"<={hyphen[2]}")]
    if not (words := _JOIN.sub(r"\1", text).split()):
        raise ValueError("empty")
    return [test for word in words for test in _comparator(word)]


def _comparator(word: str) -> list[_Test]:
    if (match := _COMPARATOR.match(word)) is None:
        raise ValueError(word)
    operator, text = match[1] or "", match[2]
    whole = _VERSION.match(text)
    numbers = [int(whole[i]) for i in (1, 2, 3)] if whole else _numbers(text)
    low = ModuleVersion(text).order if whole else _order(numbers)
    after = _order(_bumped(numbers, len(numbers) - 1)) if numbers else None
    if operator in ("", "="):
        return [lambda v: v == low] if whole else _between(low, after)
    if operator == ">=":
        return [lambda v: v >= low]
    if operator == ">":
        return [lambda v: v > low] if whole or after is None else _between(after, None)
    if operator == "<":
        return [lambda v: v < low]
    if operator == "<=":
        return [lambda v: v <= low] if whole or after is None else _between(_order([0]), after)
    if not numbers:
        return _between(low, None)
    place = min(1, len(numbers) - 1)
    if operator == "^":  # up to the first number that is not zero
        place = next((i for i, number in enumerate(numbers) if number), len(numbers) - 1)
    return _between(low, _order(_bumped(numbers, place)))


def _numbers(text: str) -> list[int]:
    """Return the numbers before the first `x` of `1.2.x`."""
    if (match := _PARTIAL.match(text)) is None:
        raise ValueError(text)
    numbers: list[int] = []
    for part in match.groups():
        if part is None or not part.isdigit():
            break
        numbers.append(int(part))
    return numbers


def _bumped(numbers: list[int], place: int) -> list[int]:
    return [*numbers[:place], numbers[place] + 1]


def _order(numbers: list[int]) -> _Order:
    """Return the sort key of the version with these numbers, which follows its pre-releases."""
    major, minor, patch = [*numbers, 0, 0, 0][:3]
    return major, minor, patch, ((2, 0, ""),)


def _between(low: _Order, end: _Order | None) -> list[_Test]:
    # Below 2.0.0 means below its pre-releases, too.
    if end is None:
        return [lambda v: v >= low]
    ceiling: _Order = (end[0], end[1], end[2], ())
    return [lambda v: v >= low, lambda v: v < ceiling]
