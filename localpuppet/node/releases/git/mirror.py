"""One mirror: a bare repository that has what was fetched from one URL.

Owns: how a mirror is made, what a git that was killed left in one, fetching refs and commits into
it. Refuses to know: what the refs are for. Commits are kept by refs of ours, `refs/commits/ID`.
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
    """Return what the directory of a repository's mirror is called."""
    return hashlib.sha256(url.encode()).hexdigest()[:32]


def fetch(
    program: GitProgram, mirror: Path, url: str, refspecs: Sequence[str], *, failure: Failure
) -> None:
    """Fetch refs into a mirror, without their history.

    Args:
        program: Git.
        mirror: The mirror; made when it is not there.
        url: The repository.
        refspecs: Git's own.
        failure: Returns the error for what git said.

    Raises:
        InvalidInputError: The repository has no such tag.
        UnavailableError: The repository or a ref cannot be had.
        IntegrityError: What the server sent is broken.
    """
    _ready(mirror)
    _run(program, mirror, url, refspecs, depth=("--depth=1",), failure=failure)


def fetch_commits(
    program: GitProgram, mirror: Path, url: str, commits: Sequence[str], *, failure: Failure
) -> None:
    """Fetch commits into a mirror.

    A server that gives no commits by their ids is asked for all branches and tags, with history.

    Raises:
        UnavailableError: The repository or a commit cannot be had.
        IntegrityError: What the server sent is broken.
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
            f"has no commit {commit}", where=url, hint="does a branch or tag still have it?"
        )
        _name(program, mirror, commit, gone)


def _name(program: GitProgram, mirror: Path, commit: str, gone: UnavailableError) -> None:
    program.run(mirror, "update-ref", f"refs/commits/{commit}", commit, failure=lambda _said: gone)


def has_commit(mirror: Path, commit: str) -> bool:
    """Return whether a commit was fetched."""
    return (mirror / "refs" / "commits" / commit).is_file()


def _ready(mirror: Path) -> None:
    if not (mirror / "HEAD").exists():
        _make(mirror)
    _sweep(mirror)


def _sweep(mirror: Path) -> None:
    """Remove what a git that was killed left; whoever fetches holds the store, so it is dead."""
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
