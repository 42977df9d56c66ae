"""diff: what a node would get from another release.

Owns: reading files and pins of releases that are on this machine. Refuses to
know: how differences are shown.
"""

from localpuppet.formats.documents import Documents
from localpuppet.machine.files import read_user_file
from localpuppet.releases.lockfile import LOCK, parse_lock
from localpuppet.releases.release import Release
from localpuppet.releases.store import entries


def files(release: Release) -> dict[str, str]:
    """Return every file on a release's modulepath: `MODULE/PATH` → kind and digest.

    What Puppet would not see, because an earlier directory has a module of that name, is left out.

    Raises:
        IntegrityError: A tree holds what must not be in one.
    """
    found: dict[str, str] = {}
    seen: set[str] = set()
    for directory in release.modulepath:
        for module in sorted(path for path in directory.iterdir() if path.is_dir()):
            if module.name in seen:
                continue
            seen.add(module.name)
            for entry in entries(module.resolve(), where=str(module)):
                path = entry.path.decode("utf-8", "backslashreplace")
                found[f"{module.name}/{path}"] = f"{entry.kind} {entry.sha256[:12]}"
    return found


def pins(release: Release, *, documents: Documents, allow_file: bool) -> dict[str, str]:
    """Return what a release's lock pins: name → tag and commit; empty without a lock.

    Raises:
        InvalidInputError: The lock is refused.
    """
    path = release.directory / LOCK
    if not path.exists():
        return {}
    lock = parse_lock(
        read_user_file(path), documents=documents, where=str(path), allow_file=allow_file
    )
    found = {f"module {name}": f"{pin.name} ({pin.short})" for name, pin in lock.modules.items()}
    for name, pin in lock.sources.items():
        found[f"source {name.source}"] = f"{pin.tag} ({pin.commit[:12]})"
    return found
