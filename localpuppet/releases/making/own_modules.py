"""The modules in a working copy that a tag of it will have, and those that it will not.

    site-modules/profile           is committed: counts
    modules/ntp                    git ignores it, r10k put it there: left out, by name
    site-modules/web/lib/x.rb      git ignores it in a module that counts: Puppet reads it here only

Owns: which is which. Refuses to know: git; what it ignores is given.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from localpuppet.releases.git.ignored import Ignored

SHOWN = 3
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModules:
    """The modules of a working copy.

    Attributes:
        kept: Directory of the modulepath, relative to the working copy → its modules that count.
        left_out: Modules and directories of modules that git ignores, relative to it.
        unseen: Files of modules that count, and that git ignores.
    """

    kept: Mapping[str, tuple[Path, ...]]
    left_out: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def modules(self) -> list[Path]:
        """The modules that count, in the order of the modulepath."""
        return [path for paths in self.kept.values() for path in paths]

    def warnings(self) -> list[str]:
        """Return what somebody should know of them, a line each."""
        lines = []
        if self.left_out:
            lines.append(f"{_some(self.left_out)}: left out, as git ignores it: no node has it")
        if self.unseen:
            lines.append(f"{_some(self.unseen)}: git ignores it: Puppet reads it here, and no node")
        return lines


def own_modules(directory: Path, modulepath: Iterable[str], ignored: Ignored) -> OwnModules:
    """Return the modules of a working copy.

    Args:
        directory: The working copy.
        modulepath: Its directories of modules, relative to it; empty text for its top.
        ignored: What git ignores in it.
    """
    kept: dict[str, tuple[Path, ...]] = {}
    left_out: list[str] = []
    unseen: list[str] = []
    for part in modulepath:
        before = f"{part}/" if part else ""
        if part and part in ignored:
            left_out.append(part)
            continue
        found = sorted(path for path in (directory / part).iterdir() if path.is_dir())
        kept[part] = tuple(path for path in found if f"{before}{path.name}" not in ignored)
        left_out += [f"{before}{path.name}" for path in found if path not in kept[part]]
        for path in kept[part]:
            name = f"{before}{path.name}/"
            inside = [file.removeprefix(name) for file in ignored.inside(name)]
            unseen += [f"{name}{file}" for file in inside if _is_read(file)]
    return OwnModules(kept=kept, left_out=tuple(left_out), unseen=tuple(unseen))


def _is_read(file: str) -> bool:
    """Whether Puppet may read a file of a module; what editors leave beside it does not count."""
    top, name = file.partition("/")[0], file.rpartition("/")[2]
    return top in _READ and not name.startswith(".") and not name.endswith("~")


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
