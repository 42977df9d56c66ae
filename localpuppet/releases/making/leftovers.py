"""What r10k and Puppet would use of a control repository, and a release does not: by name.

Owns: the comparison of a Puppetfile and of directories of modules with what the release has.
Refuses to know: who shows it. Nothing here refuses a release.
"""

from collections.abc import Container, Iterable
from pathlib import Path

from localpuppet.machine.files import read_user_file
from localpuppet.releases.manifest import Manifest, parse_inner_path
from localpuppet.releases.puppetfile.choosing import Rules
from localpuppet.releases.puppetfile.importing import import_modules
from localpuppet.releases.puppetfile.parsing import parse

PUPPETFILE = "Puppetfile"


def left_of_puppetfile(directory: Path, manifest: Manifest) -> list[str]:
    """Return what of a Puppetfile beside the manifest is not in it, a line each.

    Args:
        directory: The release.
        manifest: Its manifest.

    Raises:
        InvalidInputError: The Puppetfile cannot be read.
    """
    file = directory / PUPPETFILE
    if not file.exists():
        return []
    said = parse(read_user_file(file).decode("utf-8", "replace"))
    rules = Rules(allow_file=True, use_tags=False, paths=(manifest.moduledir,), asking=False)
    found = import_modules(said, rules=rules, old=manifest, repository=None)
    notes = [
        f"{PUPPETFILE}:{choice.entry.line}: {choice.name} is not in the manifest:"
        f" {choice.left or 'run localpuppet release import'}"
        for choice in found.choices
        if choice.name not in manifest.modules
    ]
    return notes + [f"{PUPPETFILE}:{line}: {note}" for line, note in said.notes.items()]


def unused_directories(
    directory: Path, manifest: Manifest, modulepath: Iterable[str], *, but: Container[str] = ()
) -> list[str]:
    """Return directories of modules that are not used, a line each.

    Args:
        directory: The release.
        manifest: Its manifest.
        modulepath: Directories of it that are used.
        but: Directories of it that do not count.
    """
    used = {parse_inner_path(name, where="modulepath") for name in modulepath}
    notes = []
    moduledir = manifest.moduledir
    if moduledir and not manifest.modules and not (directory / moduledir).is_dir():
        notes.append(f"modulepath: there is no directory {moduledir}")
    if used == {""}:
        return notes
    for place in sorted(path for path in directory.iterdir() if path.is_dir()):
        if place.name not in used and place.name not in but and any(place.glob("*/manifests/*.pp")):
            notes.append(
                f"{place.name} has modules and is not on the modulepath: name it in"
                " environment.conf"
            )
    return notes
