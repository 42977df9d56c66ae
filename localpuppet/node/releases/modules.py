"""Single modules of a release: the kinds of places that they come from, versions and ranges.

A kind is a package `NAME` beside this file; its `NAME_modules.py` registers a `ModuleSource`.
`NAME` is the key by which an entry of a manifest names it:

    {git: URL, tag: v1}, {forge: acme/ntp, version: 1.x}

A kind is imported when an entry needs it.

A version is that of Semantic Versioning 2.0.0. A range is `latest`, one version, or comparators:
`>= 1.0.0 < 2.0.0`, `1.x`, `1.2.x`, `~ 1.2`, `^ 1.2`, `1.0.0 - 2.0.0`, joined by `||`. A pre-release
is in a range only if the range names one.

    newest(Range.parse(">= 1.0.0 < 2.0.0", where=""), versions)
"""

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.node.releases.limits import MAX_METADATA_TEXT

if TYPE_CHECKING:
    from localpuppet.node.releases.limits import Budget


# The kind of every release and collection, and of entries that name no other.
GIT = "git"


class Module(Value):
    """A single module, as a manifest names it."""

    kind: ClassVar[str]

    @property
    def fields(self) -> dict[str, str]:
        """Its fields in a manifest, in the order of the file."""
        raise NotImplementedError

    @property
    def place(self) -> str:
        """The exact repository or module that it is a version of, as in `ModulePin`."""
        raise NotImplementedError

    @property
    def is_tag(self) -> bool:
        """Whether it is a tag, which can be signed."""
        return False

    @property
    def wish(self) -> str:
        """The wanted version in words."""
        return " ".join(self.fields.values())

    def fits(self, pin: "ModulePin") -> bool:
        """Return whether a pin is of the wanted version, wherever it comes from."""
        raise NotImplementedError

    def draft(self) -> "ModulePin | None":
        """Return the pin without digests; `None` if the source has to be asked for the version."""
        raise NotImplementedError


class ModulePin(Value):
    """A locked module, or a draft of that without digests.

    Attributes:
        is_tag: Whether it is a tag, which can be signed.
        cure: What in `localpuppet.yaml` makes its place known, for messages; or empty.
        tree_sha256: Digest of the tree's bytes (docs/reference/tree-digest.md).
    """

    kind: ClassVar[str]
    is_tag: ClassVar[bool] = False
    cure: ClassVar[str] = ""
    if TYPE_CHECKING:
        tree_sha256: str  # the order of fields is that of the file

    @property
    def name(self) -> str:
        """The version's name in the manifest."""
        raise NotImplementedError

    @property
    def short(self) -> str:
        """A short form for people."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """The pin in a few words: a tag, a version, a branch and its commit."""
        return self.name

    @property
    def place(self) -> str:
        """The exact repository or module that it is a version of."""
        raise NotImplementedError

    def bound(self, pin: "ModulePin") -> "ModulePin":
        """Return the draft with the digests of a pin, if that is of the same version."""
        raise NotImplementedError

    def unbound(self) -> "ModulePin":
        """Return the draft without digests, so that any bytes are accepted."""
        raise NotImplementedError

    def changes(self, old: "ModulePin") -> str:
        """Return the URL of a page with the changes since another pin, or empty."""
        raise NotImplementedError


class ModuleAccess(Value):
    """How the places of modules are reached.

    Attributes:
        settings: The settings of kinds, by the kind's name.
        patience: Seconds without a byte from a server.
        timeout: Seconds for one transfer.
        public: Whether a server is asked as everybody can: directly, and without a token.
        progress: Called with the numbers of fetched and of all documents or archives.
    """

    state: Path
    settings: Mapping[str, Mapping[str, Any]]
    address: Callable[[str], str] = str
    patience: float
    timeout: float
    public: bool = False
    progress: Callable[[int, int], None] = lambda _done, _all: None


Trees = Generator[tuple[str, ModulePin, Path], None, None]


class ModuleSource(Protocol):
    """A kind of places of modules; one object serves one command."""

    kind: ClassVar[str]
    # What an entry of a manifest looks like.
    form: ClassVar[str]

    @classmethod
    def module(cls, name: str, raw: Mapping[str, str], *, where: str, allow_file: bool) -> Module:
        """Return a module of a manifest."""

    @classmethod
    def pin(cls, raw: Mapping[str, Json], *, where: str, allow_file: bool) -> ModulePin:
        """Return a pin of a lock; see `module`."""

    @classmethod
    def of_puppetfile(cls, name: str, version: str) -> Module | None:
        """Return the module of an entry without a repository; `None` if it is of another kind."""
        return None

    @classmethod
    def old_archives(cls, state: Path, *, since: float) -> list[Path]:
        """Return the files in the state directory that were written before a moment.

        Args:
            since: The moment, in seconds since 1970.
        """
        return []

    @classmethod
    def address(cls, pin: ModulePin, access: ModuleAccess) -> str:
        """Return the URL that a pin is fetched from."""

    @classmethod
    def open(cls, access: ModuleAccess, repository: object) -> "ModuleSource":
        """Return the source."""

    def resolve(self, modules: Mapping[str, Module]) -> dict[str, ModulePin]:
        """Return drafts of modules without exact version."""

    def write(self, pins: Mapping[str, ModulePin], directory: Path, budget: "Budget") -> Trees:
        """Write the trees of pins below an empty directory.

        Args:
            budget: The limits; each tree is counted before any of it is written.

        Yields:
            Key, the pin with the digest of an archive, and its directory, when it is complete.
        """

    def confirm(self, pins: Iterable[ModulePin]) -> None:
        """Reject pins whose bytes the source has replaced."""
        return

    def newer(self, pins: Mapping[str, ModulePin]) -> dict[str, str]:
        """Return the newer version of each pin in words, by key; or empty text."""


_sources: dict[str, type[ModuleSource]] = {}


def register(source: type[ModuleSource]) -> type[ModuleSource]:
    """Add a kind; a decorator of its class."""
    _sources[source.kind] = source
    return source


@cache
def _names() -> Sequence[str]:
    """Return the names of all kinds, git first."""
    names = {file.parent.name for file in Path(__file__).parent.glob("*/*_modules.py")}
    return GIT, *sorted(names - {GIT})


def source_of_kind(name: str) -> type[ModuleSource]:
    """Return a kind by its name."""
    if name not in _sources:
        import_module(f"{__package__}.{name}.{name}_modules")
    return _sources[name]


def all_sources() -> list[type[ModuleSource]]:
    """Return all kinds, git first."""
    return [source_of_kind(name) for name in _names()]


def parse_module(name: str, raw: Mapping[str, str], *, where: str, allow_file: bool) -> Module:
    """Return a module of a manifest; see `ModuleSource.module`."""
    kind = next((kind for kind in reversed(_names()) if kind in raw), None)
    if kind is None:
        raise InvalidInputError(
            f"names neither {' nor '.join(_names())}",
            where=where,
            hint=" or ".join(source.form for source in all_sources()),
        )
    return source_of_kind(kind).module(name, raw, where=where, allow_file=allow_file)


def parse_pin(raw: Mapping[str, Json], *, where: str, allow_file: bool) -> ModulePin:
    """Return a pin of a lock; see `ModuleSource.pin`."""
    kind = next((kind for kind in reversed(_names()) if kind in raw), GIT)
    return source_of_kind(kind).pin(raw, where=where, allow_file=allow_file)


def check_fields(
    raw: Mapping[str, Json], form: str, fields: Sequence[str], *optional: str, where: str
) -> None:
    """Reject a pin that lacks a field of its form, or has one of another."""
    for name in fields:
        if name not in raw:
            raise InvalidInputError(
                f"{name!r} is missing", where=where, hint="run 'localpuppet release lock'"
            )
    for name in raw:
        if name not in (*fields, *optional):
            raise InvalidInputError(f"{name!r} does not belong to a {form}", where=where)


def by_kind(pins: Mapping[str, ModulePin]) -> dict[str, dict[str, ModulePin]]:
    """Return pins by the name of their kind."""
    kinds: dict[str, dict[str, ModulePin]] = {}
    for key, pin in pins.items():
        kinds.setdefault(pin.kind, {})[key] = pin
    return kinds


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
    """A range of versions.

    Attributes:
        names_prerelease: Whether it names a pre-release, so that pre-releases count.
    """

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
