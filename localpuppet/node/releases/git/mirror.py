"""One mirror: a bare repository with what was fetched from one URL.

Refs `refs/commits/ID`, which localpuppet adds, keep fetched commits.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from localpuppet.base.errors import LocalpuppetError, UnavailableError
from localpuppet.base.machine.files import make_private
from localpuppet.node.releases.git.program import GitProgram, make_bare

# Below the state directory.
PLACE = "mirrors"
# Returns the error for what git said.
Failure = Callable[[str], LocalpuppetError]


def mirror_name(url: str) -> str:
    """Return the directory name of a repository's mirror."""
    return hashlib.sha256(url.encode()).hexdigest()[:32]


def fetch(
    program: GitProgram, mirror: Path, url: str, refspecs: Sequence[str], *, failure: Failure
) -> None:
    """Fetch refs into a mirror, without their history.

    Args:
        program: Git.
        mirror: The mirror; created if missing.
        url: The repository.
        refspecs: Refspecs of git.
        failure: Returns the error for a message of git.

    Raises:
        InvalidInputError: The repository has no such tag.
        UnavailableError: The repository or a ref cannot be fetched.
        IntegrityError: The server sent corrupt data.
    """
    _ready(mirror)
    _run(program, mirror, url, refspecs, depth=("--depth=1",), failure=failure)


def fetch_commits(
    program: GitProgram, mirror: Path, url: str, commits: Sequence[str], *, failure: Failure
) -> None:
    """Fetch commits into a mirror.

    If a server does not send commits by id, all branches and tags are fetched with their history.

    Raises:
        UnavailableError: The repository or a commit cannot be fetched.
        IntegrityError: The server sent corrupt data.
    """
    refspecs = [f"+{commit}:refs/commits/{commit}" for commit in commits]
    with suppress(UnavailableError):
        fetch(program, mirror, url, refspecs, failure=failure)
        return
    everything = ["+refs/heads/*:refs/all/heads/*", "+refs/tags/*:refs/all/tags/*"]
    _ready(mirror)
    shallow = (mirror / "shallow").exists()
    depth = ("--unshallow",) if shallow else ()
    _run(program, mirror, url, everything, depth=depth, failure=failure)
    for commit in commits:
        gone = UnavailableError(
            f"has no commit {commit}",
            where=url,
            hint="check that a branch or tag still contains it",
        )
        _name(program, mirror, commit, gone)


def _name(program: GitProgram, mirror: Path, commit: str, gone: UnavailableError) -> None:
    program.run(
        mirror, "update-ref", f"refs/commits/{commit}", commit, failure=lambda _error_text: gone
    )


def has_commit(mirror: Path, commit: str) -> bool:
    """Return whether a commit was fetched."""
    return (mirror / "refs" / "commits" / commit).is_file()


def _ready(mirror: Path) -> None:
    if not (mirror / "HEAD").exists():
        _make(mirror)
    _sweep(mirror)


def _sweep(mirror: Path) -> None:
    """Remove the files of a killed git. The caller holds the store's lock, so no git runs."""
    for directory, pattern in (("", "*.lock"), ("refs", "**/*.lock"), ("objects/pack", "tmp_*")):
        for dead in (mirror / directory).glob(pattern):
            dead.unlink(missing_ok=True)


def _make(mirror: Path) -> None:
    import shutil
    import tempfile

    make_private(mirror.parent)
    new = Path(tempfile.mkdtemp(dir=mirror.parent, prefix=".new-"))
    make_bare(new, alternates=[])
    try:
        new.rename(mirror)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)  # another process was faster
        if not (mirror / "HEAD").exists():
            raise


def _run(
    program: GitProgram,
    mirror: Path,
    url: str,
    refspecs: Sequence[str],
    *,
    depth: Sequence[str],
    failure: Failure,
) -> None:
    try:
        program.ask(
            url,
            mirror,
            "fetch",
            "--quiet",
            *depth,
            "--no-tags",
            "--no-write-fetch-head",
            "--no-recurse-submodules",
            "--end-of-options",
            url,
            *refspecs,
            failure=failure,
        )
    except LocalpuppetError:
        _sweep(mirror)  # half of a pack may be gigabytes
        raise
