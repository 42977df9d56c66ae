"""Writes trees of several mirrors with one checkout of a tree of trees.

Each tree is counted against the limits before any of it is written.
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from localpuppet.node.releases.git.listing import weigh
from localpuppet.node.releases.git.program import GitProgram
from localpuppet.node.releases.limits import Budget


def check_out(
    program: GitProgram,
    repository: Path,
    trees: Sequence[tuple[str, str, str]],
    directory: Path,
    budget: Budget,
) -> None:
    """Write trees out.

    Args:
        program: Git.
        repository: A scratch git directory that has the objects of all trees.
        trees: URL, tree id, and the name of the new directory.
        directory: An existing, empty directory.
        budget: What may be written.

    Raises:
        IntegrityError: A tree holds a submodule, is too large, too deep or has too many members, or
            objects are missing.
        UnavailableError: git reached the timeout.
    """
    listing = "".join(f"040000 tree {tree}\t{target}\0" for _, tree, target in trees)
    top = program.run(repository, "mktree", "-z", stdin=listing.encode()).decode().strip()
    listed = program.records(repository, "ls-tree", "-r", "-t", "-l", "-z", "--full-tree", top)
    with closing(listed):
        weigh(listed, budget, {target: url for url, _, target in trees})
    program.run(
        repository,
        *["-c", "core.bare=false", f"--work-tree={directory}"],
        *["read-tree", "-u", "--reset", top],
        cwd=directory,
    )
