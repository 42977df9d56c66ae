"""Writes trees of several mirrors with one checkout of a tree of trees.

Each tree is counted against the limits before any of it is written.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from localpuppet.base.errors import IntegrityError
from localpuppet.node.releases.git.program import GitProgram
from localpuppet.node.releases.limits import Budget, size_problem


def weigh(records: Iterable[bytes], budget: Budget, urls: Mapping[str, str]) -> None:
    """Count trees against a budget.

    Args:
        records: `MODE KIND ID SIZE<tab>NAME/PATH`, directories included.
        budget: What may be written.
        urls: Repository by the name at the top of a path.

    Raises:
        IntegrityError: A tree holds a submodule, or exceeds the budget.
    """
    for record in records:
        about, _, name = record.partition(b"\t")
        mode, _, _, size = about.split()
        top, _, path = name.partition(b"/")
        if not path:
            continue  # the directory that is to be made for the tree
        shown = path[:120].decode("utf-8", "backslashreplace")
        where = f"{urls.get(top.decode(), '')}: {shown!r}"
        if mode == b"160000":
            raise IntegrityError(
                "a tree holds a submodule (gitlink, mode 160000)",
                where=where,
                hint="name it in the manifest and take it out with 'git rm --cached', or vendor it",
            )
        problem = size_problem(path)
        if problem:
            raise IntegrityError(problem, where=where)
        budget.take(int(size) if size.isdigit() else 0, where=where)


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
