"""diff: what a node would get from another release.

Owns: reading files, pins and compiled catalogs of releases that are on this machine. Refuses to
know: how differences are shown.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from localpuppet.errors import InvalidInputError
from localpuppet.formats.documents import Documents
from localpuppet.formats.text import one_line
from localpuppet.machine.files import make_private, read_user_file, write_durably
from localpuppet.machine.ports import Processes
from localpuppet.releases.difference import resources
from localpuppet.releases.lockfile import LOCK, parse_lock
from localpuppet.releases.release import Release
from localpuppet.releases.store import entries

MAX_CATALOG = 256 * 1024 * 1024


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
    found = {
        f"module {name}": f"{pin.tag} ({pin.commit[:12]})" for name, pin in lock.modules.items()
    }
    for name, pin in lock.sources.items():
        found[f"source {name.source}"] = f"{pin.tag} ({pin.commit[:12]})"
    return found


def compile_catalog(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    processes: Processes,
    timeout: float,
    where: str,
) -> dict[str, dict[str, str]]:
    """Return the resources of the catalog that Puppet compiles.

    Args:
        command: `puppet catalog compile …` with JSON output.
        env: Its environment.
        processes: Runs it.
        timeout: Seconds.
        where: Which release it is, for messages.

    Raises:
        InvalidInputError: It does not compile, or not in time.
        StateError: Puppet cannot be started.
    """
    output = processes.capture(command, env=env, timeout=timeout, limit=MAX_CATALOG)
    if output is None:
        raise InvalidInputError(f"the catalog was not compiled within {timeout:g} s", where=where)
    if output.ended.code != 0:
        errors = [
            line
            for line in output.stderr.decode("utf-8", "replace").splitlines()
            if "Error" in line and "Facter" not in line
        ]
        said = one_line(errors[0] if errors else f"Puppet exited {output.ended.code}")[:300]
        raise InvalidInputError(f"the catalog does not compile: {said}", where=where)
    text = output.stdout.decode("utf-8", "replace")
    try:
        return resources(json.loads(text[text.index("{") :]))
    except ValueError as error:
        raise InvalidInputError("Puppet printed no catalog", where=where) from error


def write_scratch(directory: Path, text: str) -> Path:
    """Put a node document where a compilation finds it; the caller removes the directory.

    Raises:
        StateError: The disk refused.
    """
    make_private(directory)
    path = directory / "node.yaml"
    write_durably(path, text.encode())
    return path
