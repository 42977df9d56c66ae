"""Parses `hiera.yaml` of version 5: which files its levels read.

    datadir: data, path: "nodes/%{trusted.certname}.yaml"  ->  data/nodes/*.yaml

An interpolation (`%{…}`) matches any text.
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from localpuppet.base.formats.values import mapping_of
from localpuppet.base.value import Value

DATADIR = "data"
NAME = "hiera.yaml"
_INTERPOLATION = re.compile(r"%\{[^}]*\}")
_BACKENDS = ("data_hash", "lookup_key", "data_dig", "hiera3_backend")
_YAML = ("yaml_data", "eyaml_lookup_key")


class Level(Value):
    """A level of a hierarchy that reads files.

    Attributes:
        name: The level's name.
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
    """The levels of a `hiera.yaml`.

    Attributes:
        levels: Levels with files in the release.
        notes: Messages about settings that a release does not support.
    """

    levels: tuple[Level, ...]
    notes: tuple[str, ...]


def parse_hierarchy(raw: object) -> Hierarchy:
    """Return the hierarchy of a `hiera.yaml`.

    Args:
        raw: The file, as YAML has it.
    """
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
