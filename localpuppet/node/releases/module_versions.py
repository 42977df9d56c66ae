"""Versions of modules, and ranges of versions.

A version is that of Semantic Versioning 2.0.0. A range is `latest`, one version, or comparators:
`>= 1.0.0 < 2.0.0`, `1.x`, `1.2.x`, `~ 1.2`, `^ 1.2`, `1.0.0 - 2.0.0`, joined by `||`. A pre-release
is in a range only if the range names one.

    newest(Range.parse(">= 1.0.0 < 2.0.0", where=""), versions)
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.releases.limits import MAX_METADATA_TEXT

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
    def parse(cls, text: str, *, where: str) -> "ModuleVersion":
        """Return the version."""
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
        match = _VERSION.match(self)
        if match is None:
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
    """A range of versions; if it names a pre-release, pre-releases count."""

    text: str
    alternatives: tuple[tuple[_Test, ...], ...]
    names_prerelease: bool

    @classmethod
    def parse(cls, text: str, *, where: str) -> "Range":
        """Return the range."""
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
        words = [word for word in text.split() if word != "-"]
        named = any("-" in word for word in words if word.strip("<>=~^")[:1].isdigit())
        return cls(text=text, alternatives=alternatives, names_prerelease=named)

    @property
    def exact(self) -> ModuleVersion | None:
        """The only version in the range; `None` if it has more."""
        text = self.text.strip().removeprefix("=").strip()
        return ModuleVersion(text) if _VERSION.match(text) else None

    def has(self, version: ModuleVersion) -> bool:
        """Return whether a version is in the range."""
        if self.exact is not None:
            return version.order == self.exact.order
        if not version.is_final and not self.names_prerelease:
            return False
        order = version.order
        return any(all(test(order) for test in tests) for tests in self.alternatives)


def newest(wanted: Range, versions: Iterable[ModuleVersion]) -> ModuleVersion | None:
    """Return the highest version in a range, or `None`."""
    return max(
        (version for version in versions if wanted.has(version)),
        key=lambda version: version.order,
        default=None,
    )


def _conditions(text: str) -> list[_Test]:
    hyphen = _HYPHEN.match(text)
    if hyphen:
        return [*_comparator(f">={hyphen[1]}"), *_comparator(f"<={hyphen[2]}")]
    words = _JOIN.sub(r"\1", text).split()
    if not words:
        raise ValueError("empty")
    return [test for word in words for test in _comparator(word)]


def _comparator(word: str) -> list[_Test]:
    match = _COMPARATOR.match(word)
    if match is None:
        raise ValueError(word)
    operator, text = match[1] or "", match[2]
    whole = _VERSION.match(text)
    numbers = [int(whole[i]) for i in (1, 2, 3)] if whole else _numbers(text)
    low = ModuleVersion(text).order if whole else _order(numbers)
    after = _order(_bumped(numbers, len(numbers) - 1)) if numbers else None
    if operator in (">=", ""):
        if operator == "" and not whole:
            return _between(low, after)
        return [lambda v: v >= low] if operator else [lambda v: v == low]
    if operator == "=":
        return [lambda v: v == low] if whole else _between(low, after)
    if operator == ">":
        return [lambda v: v > low] if whole or after is None else _between(after, None)
    if operator == "<":
        return [lambda v: v < low]
    if operator == "<=":
        return [lambda v: v <= low] if whole or after is None else _between(_order([0]), after)
    if not numbers:
        return _between(low, None)
    place = min(1, len(numbers) - 1) if operator != "^" else _first_nonzero(numbers)
    return _between(low, _order(_bumped(numbers, place)))


def _numbers(text: str) -> list[int]:
    """Return the numbers before the first `x` of `1.2.x`."""
    match = _PARTIAL.match(text)
    if match is None:
        raise ValueError(text)
    numbers: list[int] = []
    for part in match.groups():
        if part is None or not part.isdigit():
            break
        numbers.append(int(part))
    return numbers


def _first_nonzero(numbers: list[int]) -> int:
    return next((i for i, number in enumerate(numbers) if number), len(numbers) - 1)


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
