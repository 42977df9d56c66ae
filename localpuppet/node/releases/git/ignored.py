"""Lists what git ignores in a user's work tree, and a tag therefore lacks.

The configuration of that repository runs no program here.
"""

from pathlib import Path, PurePosixPath

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.value import Value
from localpuppet.node.releases.git.program import GitProgram

_GIT = ".git"


class Ignored(Value):
    """Paths that git ignores and does not track, relative to the top of a work tree.

    Attributes:
        paths: Files and whole directories, without a slash at the end.
    """

    paths: frozenset[str] = frozenset()

    def __contains__(self, path: object) -> bool:
        """Return whether a path, or a directory that it is in, is ignored."""
        parts = str(path).split("/")
        return any("/".join(parts[: depth + 1]) in self.paths for depth in range(len(parts)))

    def inside(self, directory: str) -> list[str]:
        """Return the ignored paths in a directory, whose path ends with a slash.

        For a directory with only ignored files these are its files, as far as git lists them.
        """
        paths = sorted(path for path in self.paths if path.startswith(directory))
        below = {parent.as_posix() for path in paths for parent in PurePosixPath(path).parents}
        return [path for path in paths if path not in below]


def ignored(program: GitProgram, directory: Path) -> Ignored:
    """Return what git ignores in a directory; nothing unless it is the top of a work tree.

    Raises:
        InvalidInputError: The repository cannot be read.
        UnavailableError: git reached the timeout.
        StateError: git is not installed.
    """
    top = directory.resolve()
    if not (top / _GIT).exists():
        return Ignored()
    text = program.run(
        top / _GIT,
        f"--work-tree={top}",
        *("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z"),
        cwd=top,
        failure=lambda error_text: InvalidInputError(
            f"git cannot list the ignored files: {error_text}", where=str(directory)
        ),
    )
    paths = text.decode("utf-8", "surrogateescape").split("\0")
    return Ignored(paths=frozenset(path.rstrip("/") for path in paths if path))
