"""Hiera's data in a release: what `hiera.yaml` reads, and whether every file parses.

    datadir: data, path: "nodes/%{trusted.certname}.yaml"  ->  data/nodes/*.yaml

An interpolation (`%{…}`) matches any text.

The `hiera.yaml` of the release and of each own module decide which files are checked. Unreadable
files are errors; unused files are warnings.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import mapping_of
from localpuppet.base.machine.files import read_user_file
from localpuppet.base.value import Value
from localpuppet.node.releases.limits import MAX_HIERA_FILE, MAX_HIERA_FILES

if TYPE_CHECKING:
    import yaml


DATADIR = "data"
NAME = "hiera.yaml"
_INTERPOLATION = re.compile(r"%\{[^}]*\}")
_BACKENDS = ("data_hash", "lookup_key", "data_dig", "hiera3_backend")
_YAML = ("yaml_data", "eyaml_lookup_key")


class RefusedData(Value):
    """A file of Hiera data, or the value of a key in it, that Puppet refuses.

    `type` is what Puppet does not take, or Ruby's error. `key` is `None` for a whole file.
    """

    file: Path
    type: str
    line: int | None
    key: str | None


class Level(Value):
    """A level of a hierarchy that reads files.

    Attributes:
        datadir: The directory of its files, relative to the `hiera.yaml`.
        paths: Its files below `datadir`, as written.
        yaml: Whether Puppet's own reader of YAML reads them, eyaml included.
    """

    name: str
    datadir: str
    paths: tuple[str, ...]
    yaml: bool = True

    def reads(self, file: str) -> bool:
        """Return whether the level may read a file, by its path relative to the `hiera.yaml`."""
        return any(fnmatchcase(file, f"{self.datadir}/{_pattern(path)}") for path in self.paths)

    def fixed(self) -> list[str]:
        """Return the part of each path that is the same on every node: a file or directory."""
        paths = []
        for path in self.paths:
            before, varies, _ = _pattern(path).partition("*")
            place = before.rpartition("/")[0] if varies else before
            paths.append(f"{self.datadir}/{place}".rstrip("/"))
        return list(dict.fromkeys(paths))


class Hierarchy(Value):
    """The levels of a `hiera.yaml`, and notes about settings that a release does not support."""

    levels: tuple[Level, ...]
    notes: tuple[str, ...]


def parse_hierarchy(raw: object) -> Hierarchy:
    """Return the hierarchy of a `hiera.yaml`."""
    document = mapping_of(raw)
    if document.get("version") != 5:
        notes = (
            "is not of version 5: Puppet 7 reads its datadir on the node, not in the release;"
            " Puppet 8 does not read it (convert it to version 5)",
        )
        return Hierarchy(levels=(), notes=notes)
    defaults = mapping_of(document.get("defaults"))
    levels: list[Level] = []
    notes_: list[str] = []
    for number, body in enumerate(
        _sequence(document.get("hierarchy", [{"path": "common.yaml"}])), 1
    ):
        level = mapping_of(body)
        name = str(level.get("name", f"level {number}"))
        own = any(key in level for key in _BACKENDS)
        usual = "" if own and "uri" in level else defaults.get("datadir", DATADIR)
        datadir = str(level.get("datadir", usual))
        named = _paths(level)
        # Hiera takes an absolute path as it is, whatever the datadir.
        paths = tuple(path for path in named if not path.startswith("/"))
        notes_ += [
            f"{name}: {path[:80]} is not in the release" for path in named if path not in paths
        ]
        if not paths:
            continue
        if datadir.startswith("/") or ".." in datadir.split("/"):
            notes_.append(f"{name}: datadir {datadir[:80]} is not in the release")
        elif "%{" in datadir:
            notes_.append(f"{name}: datadir {datadir[:80]} differs from node to node")
        else:
            places = (level, {} if own else defaults)
            reader = [place[key] for place in places for key in _BACKENDS if key in place]
            datadir = datadir.strip("/").removeprefix("./")
            yaml = (reader or ["yaml_data"])[0] in _YAML
            levels.append(Level(name=name, datadir=datadir, paths=paths, yaml=yaml))
    return Hierarchy(levels=tuple(levels), notes=tuple(notes_))


def _paths(level: Mapping[str, Any]) -> tuple[str, ...]:
    paths = [str(level[key]) for key in ("path", "glob") if key in level]
    for key in ("paths", "globs"):
        paths += [str(path) for path in _sequence(level.get(key, []))]
    mapped = _sequence(level.get("mapped_paths", []))
    if len(mapped) == 3:
        variable = re.escape(str(mapped[1]))
        paths.append(re.sub(rf"%\{{{variable}\}}", "%{}", str(mapped[2])))
    return tuple(paths)


def _pattern(path: str) -> str:
    return _INTERPOLATION.sub("*", path).replace("[", "[[]").replace("**/", "*")


def _sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else []


MAX_WARNINGS = 20
# Where releases and modules have data; Puppet reads what their `hiera.yaml` names.
DATA_DIRECTORIES = ("data", "hieradata", "hiera")
_EMPTY = ("", "~", "null", "false")  # Hiera finds nothing in such a file, and continues
_SUFFIXES = (".yaml", ".yml", ".eyaml", ".json")


class CheckedData(Value):
    """The result of the check.

    `yaml` has the files that Puppet's own reader of YAML reads, `hiera.yaml` included, and their
    names in messages; those of locked modules, too, if the release's `hiera.yaml` reads them.
    """

    files: int
    warnings: tuple[str, ...]
    yaml: Mapping[Path, str]


def check_data(
    directory: Path, modules: Iterable[Path], locked: Mapping[str, Path] = MappingProxyType({})
) -> CheckedData:
    """Check the data of a release and its own modules.

    `locked` are its locked modules, by the name that their directory has in it.
    """
    files = 0
    warnings: list[str] = []
    yaml: dict[Path, str] = {}
    for place in (directory, *modules):
        elsewhere = locked if place == directory else {}
        hierarchy = None
        if (place / NAME).is_file():
            hierarchy = parse_hierarchy(_load_config(place / NAME))
            number, notes = _check(place, directory, hierarchy, elsewhere)
            files += number
            warnings += notes
            read = yaml_files(place, hierarchy, elsewhere)
            yaml.update({file: str(place / name) for name, file in read.items()})
        warnings += unused_data(place, directory, hierarchy)
    return CheckedData(files=files, warnings=tuple(warnings), yaml=yaml)


def yaml_files(
    place: Path,
    hierarchy: Hierarchy | None = None,
    locked: Mapping[str, Path] = MappingProxyType({}),
) -> dict[str, Path]:
    """Return the files that Puppet's own reader of YAML reads, by name, `hiera.yaml` included.

    Without a `hierarchy`, its `hiera.yaml` is read, if it has one.
    """
    if not (place / NAME).is_file():
        return {}
    hierarchy = hierarchy or parse_hierarchy(_load_config(place / NAME))
    levels = [level for level in hierarchy.levels if level.yaml]
    read = {
        name: file
        for name, file in _files(place, hierarchy, locked).items()
        if any(level.reads(name) for level in levels)
    }
    return {NAME: place / NAME, **read}


def refuse_unloadable(
    refused: Iterable[RefusedData], names: Mapping[Path, str], own: Container[Path]
) -> list[str]:
    """Return a line for each value and file that Puppet refuses.

    Raises:
        InvalidInputError: Puppet refuses a whole file of the release itself, one of `own`.
    """
    warnings = []
    for found in refused:
        where = names[found.file]
        if found.key is not None:
            if found.file.name != NAME:
                key = one_line(found.key)
                warnings.append(f"{where}: {key}: Puppet refuses to look up a {found.type}")
            continue
        where += f": line {found.line}" if found.line else ""
        what = f"Puppet refuses the whole file because of this value: {found.type}"
        if found.file in own:
            hint = "quote the value, or remove its tag or alias"
            raise InvalidInputError(what, where=where, hint=hint)
        warnings.append(f"{where}: {what}")
    return warnings


def unused_data(place: Path, release: Path, hierarchy: Hierarchy | None) -> list[str]:
    """Return the directories of data that no `hiera.yaml` names, a line each.

    If a level reads unknown paths, the list is empty.
    """
    read = [] if hierarchy is None else [level.datadir for level in hierarchy.levels]
    if hierarchy and hierarchy.notes:
        return []
    why = f"there is no {NAME} beside it" if hierarchy is None else f"no level of {NAME} reads it"
    return [
        f"{(place / name).relative_to(release).as_posix()}: not used: {why}"
        for name in DATA_DIRECTORIES
        if any(path.suffix in _SUFFIXES for path in (place / name).rglob("*"))
        and not any(f"{other}/".startswith((f"{name}/", "/")) for other in read)
    ]


def _check(
    place: Path, release: Path, hierarchy: Hierarchy, locked: Mapping[str, Path]
) -> tuple[int, list[str]]:
    """Parse its own files; return their number, and a line for each unused or missing one."""
    name = (place / NAME).relative_to(release).as_posix()
    files = _files(place, hierarchy)
    warnings = [f"{name}: {note}" for note in hierarchy.notes]
    for level in hierarchy.levels:
        warnings += [
            f"{name}: {one_line(level.name)}: there is no {one_line(fixed)}"
            for fixed in level.fixed()
            if not _found(place, fixed, locked).exists()
        ]
    unread = []
    for path, file in files.items():
        _parse(file)
        if not any(level.reads(path) for level in hierarchy.levels):
            unread.append(f"{name}: no level reads {one_line(path)}")
    more = len(unread) - MAX_WARNINGS
    warnings += unread[:MAX_WARNINGS]
    warnings += [f"{name}: no level reads {more} more files"] if more > 0 else []
    return len(files), warnings


def _found(place: Path, name: str, locked: Mapping[str, Path]) -> Path:
    """Return where a name of a release is: in a locked module, or in its own files."""
    for start, tree in locked.items():
        if f"{name}/".startswith(f"{start}/"):
            return tree / name[len(start) + 1 :]
    return place / name


def _files(
    place: Path, hierarchy: Hierarchy, locked: Mapping[str, Path] = MappingProxyType({})
) -> Mapping[str, Path]:
    files: dict[str, Path] = {}
    for datadir in {level.datadir for level in hierarchy.levels}:
        top = _found(place, datadir, locked)
        for path in top.rglob("*") if datadir else top.glob("*"):
            if path.suffix in _SUFFIXES and path.name != NAME and path.is_file():
                files[(datadir / path.relative_to(top)).as_posix()] = path
            if len(files) > MAX_HIERA_FILES:
                raise InvalidInputError(
                    f"has more than {MAX_HIERA_FILES} files of data", where=str(place / datadir)
                )
    return dict(sorted(files.items()))


def _load_config(config: Path) -> object:
    import yaml  # 22 ms that a release without data does not pay

    data = read_user_file(config)
    try:
        return yaml.load(data, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _unreadable(config, error, data) from error


def _parse(file: Path) -> None:
    """Parse a file with the library that Puppet uses; values are not checked."""
    import yaml

    data = read_user_file(file, limit=MAX_HIERA_FILE)
    try:
        if file.suffix == ".json":
            whole = isinstance(loads(data), dict)
        else:
            whole = _is_mapping(yaml.parse(data, Loader=yaml.CSafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _unreadable(file, error, data) from error
    if not whole:
        raise InvalidInputError(
            "is not a mapping of keys: Hiera would find nothing in it", where=str(file)
        )


def _is_mapping(events: "Iterable[yaml.Event]") -> bool:
    """Return whether the first document is a mapping or empty, as Puppet's reader requires.

    Nodes are not composed, because Puppet's reader allows repeated anchors and PyYAML does not.
    """
    import yaml

    anchors: set[str | None] = set()
    root: yaml.Event | None = None
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                mark = cast("yaml.Mark | None", event.start_mark)
                raise yaml.MarkedYAMLError(problem="an alias without its anchor", problem_mark=mark)
        elif isinstance(event, yaml.NodeEvent):
            anchors.add(event.anchor)
            root = root or event
        elif isinstance(event, yaml.DocumentEndEvent):
            break
    empty = isinstance(root, yaml.ScalarEvent) and root.value in _EMPTY
    return root is None or empty or isinstance(root, yaml.MappingStartEvent)


def top_keys(data: bytes) -> set[str]:
    """Return the keys of the root mapping in YAML, in each style; what does not parse has none."""
    import yaml

    nodes: list[yaml.Event] = []  # those of the root mapping: key, value, key, value
    depth = 0
    with suppress(yaml.YAMLError, ValueError, RecursionError):
        for event in yaml.parse(data, Loader=yaml.CSafeLoader):
            if isinstance(event, yaml.NodeEvent) and depth == 1:
                nodes.append(event)
            if isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.CollectionStartEvent):
                if not depth and not isinstance(event, yaml.MappingStartEvent):
                    break
                depth += 1
    return {event.value for event in nodes[::2] if isinstance(event, yaml.ScalarEvent)}


def _unreadable(file: Path, error: Exception, data: bytes) -> InvalidInputError:
    import yaml

    from localpuppet.base.formats import strict_yaml

    problem = type(error).__name__
    if isinstance(error, yaml.YAMLError):
        problem = strict_yaml.explain(error, data.decode("utf-8", "replace"))
    return InvalidInputError(f"cannot be parsed: {problem}", where=str(file))
