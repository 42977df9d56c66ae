"""Single modules of a release: the kinds of places that they come from.

A kind is a package `NAME` beside this file; its `NAME_modules.py` registers a `ModuleSource`.
`NAME` is the key by which an entry of a manifest names it:

    {git: URL, tag: v1}, {forge: acme/ntp, version: 1.x}

A kind is imported when an entry needs it.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value

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

    `cure` is what in `localpuppet.yaml` makes its place known, for messages. `tree_sha256` is the
    digest of the tree's bytes (docs/reference/tree-digest.md).
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
    """How the places of modules are reached: with `public` as everybody can, without a token.

    `patience` are seconds without a byte. `progress` gets the numbers of fetched and of all
    documents or archives.
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
        """Return the files in the state directory that were written before a moment."""
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
        """Write the trees of pins below an empty directory, each counted before it is written.

        Yield key, the pin with the digest of an archive, and its directory, when it is complete.
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
    if name not in _sources:
        import_module(f"{__package__}.{name}.{name}_modules")
    return _sources[name]


def all_sources() -> list[type[ModuleSource]]:
    """Return all kinds, git first."""
    return [source_of_kind(name) for name in _names()]


def parse_module(name: str, raw: Mapping[str, str], *, where: str, allow_file: bool) -> Module:
    """Return a module of a manifest; see `ModuleSource.module`."""
    if (kind := next((kind for kind in reversed(_names()) if kind in raw), None)) is None:
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
    kinds: dict[str, dict[str, ModulePin]] = {}
    for key, pin in pins.items():
        kinds.setdefault(pin.kind, {})[key] = pin
    return kinds
