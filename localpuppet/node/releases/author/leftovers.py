"""What of a working copy is part of its tag, and what a release would not use of it.

    site-modules/profile           is committed: counts
    modules/ntp                    git ignores it, r10k put it there: left out, by name
    site-modules/web/lib/x.rb      git ignores it in a module that counts: Puppet reads it here only

`releases.git.work_tree` lists what git ignores. The results are warnings; nothing here rejects a
release.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.formats.text import shown_names
from localpuppet.base.machine.files import read_user_file
from localpuppet.base.value import Value
from localpuppet.node.releases.author.hiera_data import NAME, unused_data
from localpuppet.node.releases.author.puppetfile import parse
from localpuppet.node.releases.author.puppetfile_import import (
    EntryChoice,
    ImportRules,
    import_modules,
    must_ask,
)
from localpuppet.node.releases.composing import ReleaseLayout, layout
from localpuppet.node.releases.git.git_modules import GitModule
from localpuppet.node.releases.git.work_tree import Ignored
from localpuppet.node.releases.manifest import Manifest, parse_inner_path
from localpuppet.node.releases.modules import Module
from localpuppet.node.releases.release_files import ReleaseFiles

# What Puppet reads of a module; the rest of it (`spec/`, `pkg/`) is anybody's to ignore.
_READ = (
    "manifests",
    "functions",
    "types",
    "lib",
    "facts.d",
    "templates",
    "files",
    "data",
    "hiera.yaml",
)


class OwnModules(Value):
    """The modules of a working copy, and its code outside of modules.

    Attributes:
        kept: Directory of the modulepath, relative to the working copy → its modules that count.
        code: Directories and files of the other code that count, relative to it.
        left_out: Modules and directories of code that git ignores, relative to it.
        unseen: Files of modules and code that count, and that git ignores.
    """

    kept: Mapping[str, tuple[Path, ...]]
    code: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def modules(self) -> list[Path]:
        """The modules that count, in the order of the modulepath."""
        return [path for paths in self.kept.values() for path in paths]

    def warnings(self) -> list[str]:
        """Return warnings about them, a line each."""
        lines = []
        if self.left_out:
            lines.append(
                f"{shown_names(self.left_out)}: left out, as git ignores it: no node has it"
            )
        if self.unseen:
            lines.append(
                f"{shown_names(self.unseen)}: git ignores it: Puppet reads it here, and no node"
            )
        return lines


def own_modules(
    directory: Path, modulepath: Iterable[str], ignored: Ignored, *, code: Sequence[str] = ()
) -> OwnModules:
    """Return the modules of a working copy, and its other code.

    Args:
        modulepath: Its directories of modules, relative to it; empty text for its top.
        code: Its directories and files of code outside of modules, relative to it.
    """
    kept: dict[str, tuple[Path, ...]] = {}
    own = tuple(part for part in code if part not in ignored)
    left_out = [part for part in code if part in ignored]
    unseen = [file for part in own for file in ignored.inside(f"{part}/") if _counts(file)]
    for part in modulepath:
        before = f"{part}/" if part else ""
        if part and part in ignored:
            left_out.append(part)
            continue
        directories = sorted(path for path in (directory / part).iterdir() if path.is_dir())
        kept[part] = tuple(path for path in directories if f"{before}{path.name}" not in ignored)
        left_out += [f"{before}{path.name}" for path in directories if path not in kept[part]]
        for path in kept[part]:
            name = f"{before}{path.name}/"
            inside = [file.removeprefix(name) for file in ignored.inside(name)]
            unseen += [f"{name}{file}" for file in inside if _is_read(file)]
    return OwnModules(kept=kept, code=own, left_out=tuple(left_out), unseen=tuple(unseen))


def _is_read(file: str) -> bool:
    """Return whether Puppet may read a file of a module."""
    return file.partition("/")[0] in _READ and _counts(file)


def _counts(file: str) -> bool:
    """Return whether a file is not a leftover of an editor."""
    name = file.rpartition("/")[2]
    return not name.startswith(".") and not name.endswith("~")


def is_module(directory: Path) -> bool:
    """Return whether a directory has code that Puppet loads from a module."""
    code = ("manifests/**/*.pp", "functions/**/*.pp", "types/**/*.pp", "lib/puppet", "lib/facter")
    return any(next(directory.glob(pattern), None) for pattern in code)


PUPPETFILE = "Puppetfile"
# Where modules are for tests and examples.
_NO_PLACES = ("spec", "test", "tests", "acceptance", "examples", "fixtures", "vendor")
_NO_MODULEDIR = "the manifest has no moduledir (write 'moduledir: modules' into manifest.yaml)"
_NO_BASE = (
    "environment.conf: $basemodulepath is not used: a release has all its modules"
    " (to add modules of the node, set 'basemodulepath:' in localpuppet.yaml)"
)
_SITE = ("*.pp", "manifests/**/*.pp")
# What Puppet loads from an environment.
_LOADED = (
    "functions/**/*.pp",
    "types/**/*.pp",
    "lib/puppet/functions/**/*.rb",
    "lib/puppet/parser/functions/*.rb",
    "lib/puppet/datatypes/**/*.rb",
)
_OF_MODULES = ("lib/**/*.rb", "facts.d/*", "files/**/*", "templates/**/*")


def unused_parts(
    directory: Path, manifest: Manifest, *, files: ReleaseFiles, but: Container[str] = ()
) -> list[str]:
    """Return what r10k or Puppet would use in a control repository and its release does not.

    Unlike `check_data`, it does not read `hiera.yaml`.

    Args:
        files: The site's rules for releases.

    Raises:
        InvalidInputError: `environment.conf` cannot be read.
    """
    inner = layout(directory, manifest.moduledir, manifest.site_manifest)
    notes = [*inner.notes]
    if inner.base and not files.basemodulepath:
        notes.append(_NO_BASE)
    notes += unused_code(directory, manifest, inner, but=but)
    if not (directory / NAME).is_file():
        notes += unused_data(directory, directory, None)
    try:
        return notes + left_of_puppetfile(directory, manifest, inner.modulepath)
    except InvalidInputError as error:
        return [*notes, str(error)]


def left_of_puppetfile(
    directory: Path, manifest: Manifest, modulepath: Iterable[str] = ()
) -> list[str]:
    """Return the Puppetfile entries that the manifest lacks or pins otherwise, a line each."""
    file = directory / PUPPETFILE
    if not file.exists():
        return []
    with errors_at(PUPPETFILE, LocalpuppetError):
        puppetfile = parse(read_user_file(file).decode("utf-8", "replace"))
    paths = (manifest.moduledir or ".", *modulepath)
    rules = ImportRules(allow_file=True, use_tags=False, paths=paths, asking=False)
    imported = import_modules(puppetfile, rules=rules, old=manifest, repository=None)
    notes = [
        f"{PUPPETFILE}:{choice.entry.line}: {choice.name} is not in the manifest"
        + (f": {choice.left}" if choice.left else " (run 'localpuppet release import')")
        for choice in imported.choices
        if choice.name not in manifest.modules
    ]
    notes += [
        f"{PUPPETFILE}:{choice.entry.line}: {choice.name} is at {choice.pinned_by}, and at another"
        " version in the manifest (run 'localpuppet release import')"
        for choice in imported.choices
        if (locked := manifest.modules.get(choice.name)) and _is_moved(choice, locked, rules)
    ]
    return notes + [f"{PUPPETFILE}:{line}: {note}" for line, note in puppetfile.notes.items()]


def _is_moved(choice: EntryChoice, locked: Module, rules: ImportRules) -> bool:
    """Return whether a Puppetfile entry certainly names another version than the manifest.

    No repository is asked: the branch of an entry without a ref, and the tag at a commit, are
    unknown.
    """
    named = choice.module
    if named is None or named == locked:
        return False
    if not isinstance(named, GitModule) or not isinstance(locked, GitModule):
        return named.fields != locked.fields
    is_guessed = named.ref_kind == "branch" and must_ask(choice.entry, rules) is not None
    is_at_commit = locked.is_tag and not named.is_tag
    return named.url != locked.url or not (is_guessed or is_at_commit or named.ref == locked.ref)


def unused_code(
    directory: Path, manifest: Manifest, inner: ReleaseLayout, *, but: Container[str] = ()
) -> list[str]:
    """Return code of a release that no run uses, a line for each directory or kind."""
    moduledir = manifest.moduledir
    notes = []
    if moduledir and not manifest.modules and not (directory / moduledir).is_dir():
        notes.append(f"modulepath: there is no directory {moduledir}")
    cure = "it is not on the modulepath (name it in environment.conf)"
    notes += [
        f"{name}: its modules are not used: {cure if moduledir else _NO_MODULEDIR}"
        for name in _places_of_modules(directory, inner.modulepath, but)
    ]
    site = f"the site manifest is {inner.site_manifest or 'not in the release'}"
    loaded = _files(directory, _LOADED, but)
    of_modules = [name for name in _files(directory, _OF_MODULES, but) if name not in loaded]
    used = (*inner.modulepath, *inner.own_code)
    alone = "Puppet takes such files from modules alone (move them into one)"
    for names, places, why in (
        (_files(directory, _SITE, but), used, site if moduledir else _NO_MODULEDIR),
        (loaded, used, _NO_MODULEDIR),
        (of_modules, inner.modulepath, alone),
    ):
        unused = [name for name in names if not any(_is_in(name, place) for place in places)]
        if unused:
            notes.append(f"{shown_names(unused)}: not used: {why}")
    return notes


def _files(directory: Path, patterns: Iterable[str], but: Container[str]) -> list[str]:
    """Return the files of a release that match a pattern, and are not in a module at its top."""
    paths = (path for pattern in patterns for path in directory.glob(pattern) if path.is_file())
    names = (path.relative_to(directory).as_posix() for path in paths)
    return sorted(
        name
        for name in names
        if name not in but and not is_module(directory / name.partition("/")[0])
    )


def _is_in(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}/")


def _places_of_modules(
    directory: Path, modulepath: Iterable[str], but: Container[str]
) -> list[str]:
    """Return module directories outside of the modulepath; for the top, its modules."""
    used = {parse_inner_path(name, where="modulepath") for name in modulepath}
    places: set[str] = set()
    pending = [""]
    while pending:
        place = pending.pop()
        for path in (directory / place).iterdir():
            name = f"{place}/{path.name}".lstrip("/")
            if path.name.startswith(".") or path.name in _NO_PLACES or name in but:
                continue
            if path.is_symlink() or not path.is_dir():
                continue
            if not is_module(path):
                pending.append(name)
            elif place not in used:
                places.add(place or name)
    return sorted(places)
