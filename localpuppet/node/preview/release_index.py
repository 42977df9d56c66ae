"""The contents of a release by name, and the keys of its data: what a catalog read of them.

    {"ntp::servers": [...], "lookup_options": {...}}  ->  two digests

Two files with the same digest for a key give the same answer for it. A file counts as a whole
(`None`) if its keys are not independent of each other: it is not a mapping, a key or an anchor
exists twice, a key is not text or has an anchor, or it has a tag, a merge key or a date, which
makes Puppet reject the whole file.

- Spelling and quotes count: `1`, `"1"` and `01` differ.
- libyaml, which Ruby uses as well, parses YAML.
- An alias counts as what it names.
- Of a module's `metadata.json`, `MODULE` is the digest of what Puppet uses to compile: the names of
  the dependencies in their order, and `data_provider`. A missing file counts as one without them.
- A state is the SHA-256 of a file's bytes, `DIRECTORY`, or `None` for a missing name.
- A listing is the digest of the names in a directory with their kinds; `data/**` means everything
  below `data`.
- A link counts as what it leads to; one that leads nowhere is `BROKEN`, and one that leads out of
  its tree is refused.
- Names are those of `compile_request.RawReads`. A compile may name any file: one that is not in the
  index has no state, and nothing looks for it.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import yaml

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import has_more_values
from localpuppet.base.machine.files import input_errors
from localpuppet.base.machine.open_tree import OpenTree, open_entry
from localpuppet.base.value import Value
from localpuppet.node.preview.compile_request import RESERVED, SITE_PREFIX
from localpuppet.node.preview.preview_limits import MAX_DATA_FILE, MAX_DATA_VALUES, MAX_NESTED_LINKS
from localpuppet.node.releases.limits import LIMITS, MAX_DEPTH
from localpuppet.node.releases.release import Release

_SUFFIXES = {"yaml": "yaml", "yml": "yaml", "json": "json"}
# Plain text that Ruby reads as a date, a time or a symbol: Puppet rejects the file, whatever the
# key.
_REJECTED = re.compile(r"-?\d{4}-\d|:")
# Plain text that may be a key of another type than text.
_ODD_KEY = re.compile(
    r"(?:|~|null|true|false|yes|no|on|off|y|n|=|<<|[-+]?\.(?:nan|inf)|[-+.:]?\d.*)\Z", re.IGNORECASE
)
_MERGE = "<<"
METADATA = "metadata.json"
# The key of what Puppet uses of a module's metadata.
MODULE = "?module"
# Without a value for each of them, Puppet rejects the module.
_REQUIRED = ("author", "dependencies", "license", "source", "version")
# Ruby reads 100 levels.
_MAX_DEPTH = 64


class _WholeError(ValueError):
    """The file counts as a whole."""


def key_digests(name: str, data: bytes) -> Mapping[str, str] | None:
    """Return root key → digest of its value; `None` if the file counts as a whole."""
    kind = _SUFFIXES.get(name.rpartition(".")[2])
    if kind is None or len(data) > MAX_DATA_FILE:
        return None
    try:
        if kind != "json":
            return _of_yaml(data)
        return _of_json(data, is_metadata=name.rpartition("/")[2] == METADATA)
    except (ValueError, yaml.YAMLError, RecursionError):
        return None


class _Members(list[tuple[str, object]]):
    """The members of a JSON object in their order, duplicates included."""


def missing_digests(name: str) -> Mapping[str, str] | None:
    """Return what `key_digests` returns for a missing file; `None` if only its absence counts."""
    return {MODULE: _module_digest([])} if name.rpartition("/")[2] == METADATA else None


def _of_json(data: bytes, *, is_metadata: bool) -> dict[str, str]:
    if has_more_values(data, MAX_DATA_VALUES):
        raise _WholeError
    raw = json.loads(  # noqa: TID251 - spelling counts, and depth raises RecursionError
        data.decode("utf-8"),
        object_pairs_hook=_Members,
        parse_int=lambda digits: {"number": digits},
        parse_float=lambda digits: {"number": digits},
        parse_constant=_refuse,
    )
    if not isinstance(raw, _Members):
        raise _WholeError
    digests = {key: _digest("json", json.dumps(_unlike(value))) for key, value in raw}
    if len(digests) != len(raw) or not {MODULE, _MERGE}.isdisjoint(digests):
        raise _WholeError
    return {**digests, MODULE: _module_digest(raw)} if is_metadata else digests


def _module_digest(members: Sequence[tuple[str, object]]) -> str:
    """Return the digest of what Puppet uses of a module's metadata.

    Puppet takes an empty object as no metadata, and both as no dependencies. These decide only
    which modules it searches first.
    """
    metadata = dict(members)
    required = [metadata.get(key) for key in _REQUIRED]
    dependencies = metadata.get("dependencies", [])
    name = metadata.get("name")
    if members and (None in required or not isinstance(name, str | None)):
        raise _WholeError
    if not isinstance(dependencies, list) or isinstance(dependencies, _Members):
        raise _WholeError
    names = []
    for dependency in dependencies:
        other = dict(dependency).get("name") if isinstance(dependency, _Members) else None
        if not isinstance(other, str):
            raise _WholeError
        names.append(other)
    provider = _unlike(metadata.get("data_provider"))
    return _digest("module", json.dumps([names, provider]))


def _unlike(value: object, depth: int = 2) -> object:
    """Return a value in which an object, a list and a number never look alike."""
    if depth > _MAX_DEPTH:
        raise _WholeError
    if isinstance(value, _Members):
        return {"object": [[key, _unlike(item, depth + 1)] for key, item in value]}
    if isinstance(value, list):
        return [_unlike(item, depth + 1) for item in value]
    return value


def _refuse(text: str) -> object:
    raise _WholeError(text)


def _digest(*parts: str) -> str:
    form = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        form.update(b"%d:" % len(data) + data)
    return form.hexdigest()


def _of_yaml(data: bytes) -> dict[str, str]:
    data.decode("utf-8")  # libyaml would also read UTF-16, which Puppet rejects
    events = _bounded(yaml.parse(data, Loader=yaml.CSafeLoader))
    for event in events:
        if isinstance(event, yaml.MappingStartEvent):
            if event.tag is not None or event.anchor is not None:
                raise _WholeError
            digests = _YamlForms().root(events)
            ended = [type(other) for other in events]
            if ended != [yaml.DocumentEndEvent, yaml.StreamEndEvent]:
                raise _WholeError  # several documents
            return digests
        if not isinstance(event, yaml.StreamStartEvent | yaml.DocumentStartEvent):
            break
    raise _WholeError


def _bounded(events: Iterable[yaml.Event]) -> Iterator[yaml.Event]:
    for count, event in enumerate(events):
        if count > MAX_DATA_VALUES:
            raise _WholeError
        yield event


class _YamlForms:
    """Digests of YAML values, without recursion."""

    def __init__(self) -> None:
        self._anchors: dict[str, str | None] = {}  # `None` until the value has ended

    def root(self, events: Iterator[yaml.Event]) -> dict[str, str]:
        """Return the members of the root mapping, whose start was read."""
        digests: dict[str, str] = {}
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                return digests
            if not isinstance(event, yaml.ScalarEvent) or event.value in digests:
                raise _WholeError
            self._scalar(event, is_key=True)
            if event.anchor is not None or event.value == _MERGE:
                raise _WholeError
            digests[event.value] = self._value(next(events), events)
        raise _WholeError

    def _value(self, event: yaml.Event, events: Iterator[yaml.Event]) -> str:
        """Return the digest of the value that starts with an event."""
        open_: list[tuple[str, str | None, list[str]]] = []
        while True:
            if (form := self._form(event, open_)) is not None:
                if not open_:
                    return form
                open_[-1][2].append(form)
            event = next(events)

    def _form(
        self, event: yaml.Event, open_: list[tuple[str, str | None, list[str]]]
    ) -> str | None:
        """Return the digest of a value that ends with this event, or `None`."""
        match event:
            case yaml.ScalarEvent():
                is_key = bool(open_) and open_[-1][0] == "mapping" and len(open_[-1][2]) % 2 == 0
                self._reserve(event.anchor)
                return self._name(event.anchor, self._scalar(event, is_key=is_key))
            case yaml.AliasEvent():
                form = self._anchors.get(str(event.anchor))
                if form is None:
                    raise _WholeError
                return form
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                if event.tag is not None:
                    raise _WholeError
                kind = "mapping" if isinstance(event, yaml.MappingStartEvent) else "sequence"
                self._reserve(event.anchor)
                open_.append((kind, event.anchor, []))
                return None
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                kind, anchor, forms = open_.pop()
                return self._name(anchor, _digest(kind, *forms))
        raise _WholeError

    def _reserve(self, anchor: str | None) -> None:
        """Note an anchor. Which of two with one name an alias means depends on the reader."""
        if anchor is not None:
            if anchor in self._anchors:
                raise _WholeError
            self._anchors[anchor] = None

    def _name(self, anchor: str | None, form: str) -> str:
        if anchor is not None:
            self._anchors[anchor] = form
        return form

    def _scalar(self, event: yaml.ScalarEvent, *, is_key: bool) -> str:
        if event.tag is not None:
            raise _WholeError
        plain = event.style in (None, "")
        if plain and _REJECTED.match(event.value):
            raise _WholeError
        if is_key and plain and event.value != _MERGE and _ODD_KEY.match(event.value):
            raise _WholeError
        return _digest("plain" if plain else "quoted", event.value)


DIRECTORY, BROKEN = "directory", "broken"
# Data files whose keys stay in memory. A file of one node is read for that node only.
_DATA_FILES = 512
_EVERYTHING = "/**"
_TREE_NAME = 64  # of a tree of the content store

States = Mapping[str, str]


class TreeStates:
    """Remembers the states of trees that never change, by the name of their digest."""

    def get(self, tree: str) -> States | None:
        """Return the states of a tree; `None` if they are unknown."""
        return None

    def put(self, tree: str, states: States) -> None:
        """Remember the states of a tree."""


class IndexRoot(Value):
    """A directory or file of a release.

    Attributes:
        prefix: What its names start with: empty, or a name.
        digest: The digest or commit of a tree that never changes; empty for any other.
        is_base: Whether it is the machine's own, in which a link may lead out.
    """

    prefix: str
    path: Path
    digest: str = ""
    is_base: bool = False


class ReleaseIndex:
    """The states of all names of a release.

    `read` returns the first bytes of a file by its name: `MAX_DATA_FILE`, and one more.
    """

    def __init__(self, states: dict[str, str], read: Callable[[str], bytes]) -> None:
        self.states = states
        self.read = read
        self._children: dict[str, list[str]] = {}
        for name in states:
            self._children.setdefault(name.rpartition("/")[0] or ".", []).append(name)
        self._listings: dict[tuple[str, bool], str | None] = {}
        self._keys = lru_cache(_DATA_FILES)(self._parse_keys)

    @classmethod
    def of(cls, roots: Sequence[IndexRoot], known: TreeStates) -> "ReleaseIndex":
        """Return the index of a release on this machine, with the known states of fixed trees."""
        states: dict[str, str] = {".": DIRECTORY}
        paths = {root.prefix: root.path for root in roots}
        for root in roots:
            inner = known.get(root.digest) if root.digest else None
            if inner is None:
                inner = tree_states(root.path, leaving=BROKEN if root.is_base else "")
                if root.digest:
                    known.put(root.digest, inner)
            if not root.prefix:
                _refuse_reserved(inner)
            start = f"{root.prefix}/" if root.prefix else ""
            for name, state in inner.items():
                states[f"{start}{name}" if name != "." else root.prefix or "."] = state
            for parent in () if root.is_base else _parents(root.prefix):
                states.setdefault(parent, DIRECTORY)

        def read(name: str) -> bytes:
            for parent in (name, *_parents(name), ""):
                if parent in paths:
                    rest = name[len(parent) :].lstrip("/")
                    top = paths[parent] if rest else paths[parent].parent
                    with input_errors(top), OpenTree(top) as tree:
                        return tree.read(rest or paths[parent].name, most=MAX_DATA_FILE + 1)
            raise InvalidInputError("is not a file of the release", where=name)

        return cls(states, read)

    def state(self, name: str) -> str | None:
        """Return the state of a name; `None` if it is missing, or not one of the release."""
        return self.states.get(name)

    def listing(self, directory: str) -> str | None:
        """Return the digest of the names in a directory; `None` if it is not one."""
        deep = directory.endswith(_EVERYTHING) or directory == "**"
        key = directory.removesuffix("**").rstrip("/") or ".", deep
        if key not in self._listings:
            self._listings[key] = self._list(*key)
        return self._listings[key]

    def keys(self, file: str) -> Mapping[str, str] | None:
        """Return root key → digest of a data file; `None` if it is missing or counts as a whole."""
        return self._keys(file) if self.states.get(file) not in (None, DIRECTORY, BROKEN) else None

    def _parse_keys(self, file: str) -> Mapping[str, str] | None:
        return key_digests(file, self.read(file))

    def _list(self, top: str, deep: bool) -> str | None:
        if self.states.get(top) != DIRECTORY:
            return None
        names = sorted(self.below(top) if deep else self._children.get(top, ()))
        return _listing_digest((name, self.states[name]) for name in names if name != ".")

    def below(self, top: str) -> Iterator[str]:
        """Yield the names of everything below a directory."""
        waiting = [top]
        while waiting:
            for name in self._children.get(waiting.pop(), ()):
                if name != ".":
                    yield name
                    waiting.append(name)


def _refuse_reserved(names: States) -> None:
    """Reject a tree with names that its release's reads have for something else."""
    for name in RESERVED:
        if name in names:
            raise InvalidInputError(
                "is a name that previews use themselves", where=name, hint="rename it"
            )


def index_roots(release: Release, site_manifest: Path, *, own: str = "") -> list[IndexRoot]:
    """Return the directories of a release whose contents catalogs depend on.

    `site_manifest` is for a release that has none. The states of its tree are remembered by the
    key `own`, unless that is empty.
    """
    roots = [
        IndexRoot(prefix=start, path=tree, digest=_store_digest(tree, release) if start else own)
        for start, tree in sorted(release.trees.items())
    ]
    if release.site_manifest is None and site_manifest.exists():
        prefix = f"{SITE_PREFIX}{site_manifest.name}"
        roots.append(IndexRoot(prefix=prefix, path=site_manifest))
    base = (IndexRoot(prefix=str(path), path=path, is_base=True) for path in release.base)
    return [*roots, *base]


def _store_digest(tree: Path, release: Release) -> str:
    """Return the digest by which the content store names a tree; empty for any other tree.

    The release chooses the names in its own tree, which may be in the store as well.
    """
    real = tree.resolve()
    if any(real.is_relative_to(top.resolve()) for top in (release.directory, release.trees[""])):
        return ""
    return real.name if real.parent.name == "objects" and len(real.name) == _TREE_NAME else ""


def _parents(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def tree_states(top: Path, *, leaving: str = "", shown: Path | None = None) -> dict[str, str]:
    """Return the states of everything in a directory, or of a file, by relative name.

    `leaving` is the state of a link that leads out; empty to refuse it.
    """
    with input_errors(top):
        if not top.is_dir():
            file = os.open(top, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return {".": _file_state(file, top)}
            finally:
                os.close(file)
        with OpenTree(top, shown=shown) as tree:
            reader = _TreeReader(tree, leaving)
            reader.add(tree.descriptor, "", (), is_linked=False)
        return reader.states


def tree_metadata(top: Path) -> str:
    """Return a digest of the names, sizes, times and inodes in a directory.

    While it is the same, so are the contents: only root can set the time of a change of metadata.
    """
    form = hashlib.sha256()
    with input_errors(top):
        waiting = [str(top)]
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    status = entry.stat(follow_symlinks=False)
                    times = status.st_mtime_ns, status.st_ctime_ns
                    parts = entry.path, status.st_mode, status.st_size, status.st_ino, times
                    form.update(repr(parts).encode("utf-8", "surrogateescape"))
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return form.hexdigest()


class _TreeReader:
    """Reads the states of everything in a tree."""

    def __init__(self, tree: OpenTree, leaving: str) -> None:
        self._tree, self._leaving = tree, leaving
        self._files: dict[tuple[int, int], str] = {}
        self._nested_links = 0
        self.states = {".": DIRECTORY}

    def add(
        self, directory: int, start: str, above: tuple[tuple[int, int], ...], *, is_linked: bool
    ) -> None:
        """Add the states of everything in an open directory, whose names begin with `start`.

        `is_linked` says whether a link is on the way to it.
        """
        own = _identity(os.fstat(directory))
        if own in above or len(above) > MAX_DEPTH:
            where = str(self._tree.path / start)
            raise InvalidInputError("has a link to a directory that it is in", where=where)
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name == ".git":
                    continue
                if len(self.states) > LIMITS.members:
                    raise InvalidInputError(
                        f"has more than {LIMITS.members} members", where=str(self._tree.path)
                    )
                name = f"{start}{entry.name}"
                if entry.is_symlink():
                    self._nested_links += is_linked
                    inner = self._follow(name)
                    if isinstance(inner, str):
                        self.states[name] = inner
                        continue
                elif entry.is_file() or entry.is_dir():
                    inner = open_entry(entry.name, directory)
                else:
                    raise InvalidInputError(
                        "is not a regular file", where=f"{self._tree.path}/{name}"
                    )
                try:
                    self._add(inner, name, (*above, own), is_linked=is_linked or entry.is_symlink())
                finally:
                    os.close(inner)

    def _follow(self, name: str) -> int | str:
        """Return a descriptor of what a link leads to, or its state."""
        if self._nested_links > MAX_NESTED_LINKS:
            raise InvalidInputError(
                f"has more than {MAX_NESTED_LINKS} links below links to directories",
                where=str(self._tree.path),
            )
        try:
            found = self._tree.find(name)
        except InvalidInputError:
            if not self._leaving:
                raise
            return self._leaving
        return BROKEN if found is None else found

    def _add(
        self, descriptor: int, name: str, above: tuple[tuple[int, int], ...], *, is_linked: bool
    ) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self.states[name] = DIRECTORY
            self.add(descriptor, f"{name}/", above, is_linked=is_linked)
            return
        own = _identity(status)
        if own not in self._files:  # links to a directory lead to the same files many times
            self._files[own] = _file_state(descriptor, self._tree.path / name)
        self.states[name] = self._files[own]


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _file_state(descriptor: int, path: Path) -> str:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise InvalidInputError("is not a regular file", where=str(path))
    with os.fdopen(os.dup(descriptor), "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listing_digest(entries: Iterable[tuple[str, str]]) -> str:
    form = hashlib.sha256()
    for name, state in entries:
        kind = state if state in (DIRECTORY, BROKEN) else "file"
        form.update(f"{kind} {name}\0".encode("utf-8", "surrogateescape"))
    return form.hexdigest()
