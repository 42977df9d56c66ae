"""Composed releases: directories of links into the store.

    STATE/releases/SHA256/modules/ntp       -> a tree of the store; a staged release
    STATE/links/SHA256/modules/ntp          -> the same for a branch or a work tree
    STATE/links/SHA256/release/hiera.yaml   -> the file of the release
    STATE/links/SHA256/release/modules/ntp  -> a tree of the store

- A composed release has the entries of its tree, and each single module that its lock pins: at
  its top, or in the directory that the manifest names (`moduledir: modules`, as r10k leaves it),
  beside the tree's own entries there.
- The modulepath is the release's top, or for a control repository the directories in
  `environment.conf`, which are all inside the release. Settings that are not supported are listed
  in the notes. Without a `moduledir` in the manifest `environment.conf` is an ordinary file, so
  that a release keeps the meaning that it had when it was made.
- Below `links`, `modules` is a directory of the modulepath. `release` is composed as a staged
  release is, so that `hiera.yaml` finds the same data in modules.
- A directory is named by the digest of its contents, so it is complete or absent and never changes.
- Trees are written before the links that name them.
- Each directory below `links` records when it was last used.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.machine import files
from localpuppet.base.value import Value
from localpuppet.node.releases.limits import MAX_DIRECTORIES
from localpuppet.node.releases.manifest import parse_inner_path
from localpuppet.node.releases.release_records import StagedRelease, composition

if TYPE_CHECKING:
    from localpuppet.node.releases.store import Store


FILE = "environment.conf"
BASE = "$basemodulepath"
MODULEDIR = "modules"
MANIFESTS = "manifests"
# Where Puppet looks for functions and data types that every module may use; nothing else of these
# directories counts: types, providers and facts come from modules.
CODE_DIRECTORIES = ("functions", "lib", "types")
# Where control repositories have modules of their own.
SITE_DIRECTORIES = ("site", "site-modules", "dist", MODULEDIR)
_MAIN = "[main]"
_LINE = r"\s*([a-z_]+)\s*=\s*(.*?)\s*\Z"
_CODEDIR = r"\$(?:environment|codedir|confdir)\b.*\Z"


class EnvironmentConf(Value):
    """The settings of an `environment.conf`: paths inside the release, and notes about the others.

    The modulepath has `$basemodulepath` at its position.
    """

    modulepath: tuple[str, ...]
    manifest: str
    notes: tuple[str, ...]


def parse_environment(text: str, *, moduledir: str = MODULEDIR) -> EnvironmentConf:
    """Return the settings of an `environment.conf`; an empty one has Puppet's defaults.

    `moduledir`, the directory of single modules, is on the modulepath if the file names none.
    """
    settings: dict[str, str] = {}
    notes: list[str] = []
    section = _MAIN
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", ";")):
            continue
        if stripped.startswith("["):
            section = stripped
        elif (match := re.match(_LINE, line)) is None:
            notes.append(f"line {number} is not a setting (write NAME = VALUE)")
        elif section != _MAIN:
            notes.append(f"line {number} is in a section that Puppet does not read (remove it)")
        elif match[1] in settings:
            notes.append(f"line {number} sets {match[1]} again: Puppet takes the first (remove it)")
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
    return EnvironmentConf(modulepath=path, manifest=manifest or MANIFESTS, notes=tuple(notes))


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
        return parse_inner_path(text) or "."
    except InvalidInputError:
        what = (
            "names another directory of Puppet"
            if re.match(_CODEDIR, text)
            else "leaves the release"
        )
        notes.append(f"{setting}: {text[:60]!r} {what}")
        return ""


class ReleaseLayout(Value):
    """The directories and files of a release that Puppet reads.

    Attributes:
        modulepath: Directories inside the release; empty text for its top.
        notes: What r10k and Puppet would use and a release ignores.
        code: Directories with code for every module, see `CODE_DIRECTORIES`.
        single: The index in the modulepath before which single modules come if they are outside of
            the release; `None` if their directory is not on the modulepath.
        base: Whether `environment.conf` names `$basemodulepath`, the node's own directories.
    """

    modulepath: tuple[str, ...]
    site_manifest: str = ""
    notes: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    single: int | None = 0
    base: bool = False

    @property
    def own_code(self) -> tuple[str, ...]:
        """Directories and files with code outside of modules."""
        return (*self.code, self.site_manifest) if self.site_manifest else self.code


def layout(directory: Path, moduledir: str, site_manifest: str = "") -> ReleaseLayout:
    if site_manifest and not (directory / site_manifest).exists():
        raise InvalidInputError(f"the release has no {site_manifest}", where="site_manifest")
    file = directory / FILE
    if not moduledir:
        unused = (f"{FILE} is not used: the manifest has no moduledir",)
        return ReleaseLayout(
            modulepath=("",),
            site_manifest=site_manifest,
            notes=unused if file.exists() else (),
        )
    text = files.read_user_file(file).decode("utf-8", "replace") if file.exists() else ""
    conf = parse_environment(text, moduledir=moduledir)
    notes = list(conf.notes)
    directories: list[str] = []
    single = None
    for entry in conf.modulepath:
        if entry == moduledir:
            single = len(directories)
        if entry == BASE:
            continue
        if (directory / entry).is_dir():
            directories.append("" if entry == "." else entry)
        elif entry != moduledir:  # staging makes that one
            notes.append(f"modulepath: there is no directory {entry} (remove it)")
    if moduledir not in conf.modulepath:
        notes.append(f"modulepath: does not have moduledir, {moduledir} (add it)")
    theirs = conf.manifest if (directory / conf.manifest).exists() else ""
    if not theirs and conf.manifest != MANIFESTS:
        notes.append(f"manifest: there is no {conf.manifest}")
    return ReleaseLayout(
        modulepath=tuple(directories),
        site_manifest=site_manifest or theirs,
        code=tuple(name for name in CODE_DIRECTORIES if (directory / name).is_dir()),
        notes=tuple(f"{FILE}: {note}" for note in notes),
        single=single,
        base=file.exists() and BASE in conf.modulepath,
    )


class Compositions:
    """The composed releases on this node."""

    def __init__(self, directory: Path, store: "Store") -> None:
        self._directory = directory
        self._store = store

    def links(self, staged: StagedRelease) -> dict[str, str]:
        """Return the links in a composed release, name → target; two of one name are refused."""
        own = self._store.path(staged.pin.tree_sha256)
        names = composed_names(own, staged.moduledir if staged.modules else "")
        trees = {name: f"{own.name}/{name}" for name in names}
        inner = f"{staged.moduledir}/" if staged.moduledir else ""
        for name, sha256 in staged.modules.items():
            if f"{inner}{name}" in trees:
                raise InvalidInputError(
                    f"the release has a directory {inner + name!r}, and its manifest a module of"
                    " that name",
                    where=str(staged.release),
                    hint="keep one of them",
                )
            trees[f"{inner}{name}"] = sha256
        return _targets(trees)

    def whole(self, staged: StagedRelease) -> bool:
        """Return whether the directory exists with exactly its links."""
        return _has_links(self._directory / staged.composition, self.links(staged))

    def code(self, staged: StagedRelease, name: Path) -> tuple[dict[str, Path], dict[str, Path]]:
        """Return the modulepath of a composed release, and its other code: name → path."""
        directory = self._directory / staged.composition
        inner = layout(directory, staged.moduledir)
        modulepath, own = (
            {str(name / part): directory / part for part in parts}
            for parts in (inner.modulepath, inner.own_code)
        )
        return modulepath, own

    def make(self, staged: StagedRelease) -> None:
        _make_links(self._directory / staged.composition, self.links(staged))

    def names(self) -> set[str]:
        if not self._directory.is_dir():
            return set()
        return {path.name for path in self._directory.iterdir() if not path.name.startswith(".")}

    def used(self, paths: Collection[Path]) -> tuple[set[str], set[str]]:
        """Return the compositions and the trees behind directories that a run was given."""
        compositions = _names_below(self._directory, paths)
        trees = _names_below(self._store.objects, paths)
        return compositions, trees.union(*(_trees(self._directory / one) for one in compositions))

    def remove(self, name: str) -> None:
        files.remove_tree(self._directory / name)


def _names_below(directory: Path, paths: Iterable[Path]) -> set[str]:
    """Return the names in a directory that some paths begin with."""
    return {
        path.relative_to(directory).parts[0] for path in paths if path.is_relative_to(directory)
    }


def composed_names(tree: Path, moduledir: str) -> Iterator[str]:
    """Yield what a composed release links in its own tree.

    The directories on the way to the modules are real ones; all else in them is linked.
    """
    way = ["", *accumulate(f"{part}/" for part in moduledir.split("/") if part)]
    for before in way:
        for name in _names(tree / before):
            if f"{before}{name}/" not in way and f"{before}{name}" != ".git":
                yield f"{before}{name}"


def _names(directory: Path) -> list[str]:
    if directory.is_symlink() or not directory.is_dir():
        return []
    return sorted(os.listdir(directory))  # noqa: PTH208 - names only


HIERA = "hiera.yaml"
_MODULES, _RELEASE = "modules", "release"


class ModuleLinks:
    """The link directories on this node."""

    def __init__(self, state: Path) -> None:
        self._directory = state / "links"

    def path(self, trees: Mapping[str, str]) -> Path:
        """Return the path, which may not exist, of links to trees: digests or absolute paths."""
        return self._directory / composition(_targets(trees))[:16]  # `has` compares the targets

    def places(self, directory: Path, links: Mapping[str, str]) -> tuple[Path, Path]:
        """Return the directories of a release's modules, and of its `hiera.yaml`."""
        path, has_hiera = self.path(links), f"{_RELEASE}/{HIERA}" in links
        return path / _MODULES, path / _RELEASE if has_hiera else directory

    def has(self, trees: Mapping[str, str]) -> bool:
        """Return whether the directory exists with exactly its links."""
        return _has_links(self.path(trees), _targets(trees))

    def make(self, trees: Mapping[str, str]) -> Path:
        """Create the directory if missing, record its use, and return it.

        The trees are in the store, and the caller holds its lock.
        """
        final = self.path(trees)
        with files.disk_errors(final):
            if not self.has(trees):
                for dead in self._directory.glob(".*"):  # of a process that died here
                    files.remove_tree(dead)
                _make_links(final, _targets(trees))
            os.utime(final)
        return final

    def unused(self, *, since: float) -> list[Path]:
        """Return the directories that were not used since a time, in seconds since 1970."""
        return [path for path in self._all() if path.stat().st_mtime < since]

    def needed(self, *, but: list[Path]) -> set[str]:
        """Return the digests of the trees that the directories name."""
        return set[str]().union(*(_trees(path) for path in self._all() if path not in but))

    def _all(self) -> list[Path]:
        with files.disk_errors(self._directory), suppress(FileNotFoundError):
            return sorted(path for path in self._directory.iterdir() if path.is_dir())
        return []


def release_links(directory: Path, moduledir: str, trees: Mapping[str, str]) -> dict[str, str]:
    """Return the links for a release whose modules are outside of it, for `ModuleLinks`.

    `trees` has a digest or the absolute path of a work tree, by the name of the module.
    """
    links = {f"{_MODULES}/{name}": tree for name, tree in trees.items()}
    if trees and files.is_file(directory / HIERA):
        own = {name: str(directory / name) for name in composed_names(directory, moduledir)}
        inner = f"{moduledir}/" if moduledir else ""
        own.update({f"{inner}{name}": tree for name, tree in trees.items()})
        links.update({f"{_RELEASE}/{name}": tree for name, tree in own.items()})
    return links


def _make_links(final: Path, links: Mapping[str, str]) -> None:
    """Make a directory of links durably, complete or not at all."""
    new = final.parent / f".new-{os.urandom(4).hex()}"
    files.make_private(new)
    for name, target in links.items():
        files.make_private((new / name).parent)
        (new / name).symlink_to(target)
    for place, _, _ in os.walk(new):
        files.sync_directory(Path(place))
    files.remove_tree(final)
    new.rename(final)
    files.sync_directory(final.parent)


def _has_links(directory: Path, links: Mapping[str, str]) -> bool:
    """Return whether a directory has exactly some links, and the directories on the way to them."""
    try:
        return directory.is_dir() and links == {
            str(entry.relative_to(directory)): str(entry.readlink())
            for entry in _entries(directory)
        }
    except OSError:
        return False


def _trees(directory: Path) -> set[str]:
    """Return the digests of the trees that the links in a directory lead into."""
    links = (entry.readlink() for entry in _entries(directory) if entry.is_symlink())
    relative = (link.parts for link in links if not link.is_absolute())
    return {parts[parts.index("objects") + 1] for parts in relative if "objects" in parts[:-1]}


def _entries(top: Path) -> Iterator[Path]:
    """Yield what is in a directory of links, except the directories on the way to them."""
    for place, directories, others in os.walk(top):
        if not directories and not others:
            yield Path(place)
        for path in (Path(place, name) for name in (*directories, *others)):
            if path.is_symlink() or not path.is_dir():
                yield path


def _targets(trees: Mapping[str, str]) -> dict[str, str]:
    return {
        name: tree if tree.startswith("/") else f"{'../' * (name.count('/') + 2)}objects/{tree}"
        for name, tree in trees.items()
    }
