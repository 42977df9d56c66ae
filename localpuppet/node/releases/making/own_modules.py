"""Decides which modules and other code of a working copy are part of its tag.

    site-modules/profile           is committed: counts
    modules/ntp                    git ignores it, r10k put it there: left out, by name
    site-modules/web/lib/x.rb      git ignores it in a module that counts: Puppet reads it here only

`releases.git.ignored` lists what git ignores.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from localpuppet.base.formats.text import shown_names
from localpuppet.base.value import Value
from localpuppet.node.releases.git.ignored import Ignored

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
        directory: The working copy.
        modulepath: Its directories of modules, relative to it; empty text for its top.
        ignored: What git ignores in it.
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
