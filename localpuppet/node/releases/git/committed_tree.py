"""Checks the tree that committing a working copy would give, written as a node stages it.

The working copy stays unchanged, and its repository's configuration runs no program.
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.releases.git.checkout import check_out
from localpuppet.node.releases.git.program import GitProgram, make_bare
from localpuppet.node.releases.limits import Budget
from localpuppet.node.releases.store import tree_digest


def refuse_unstageable(
    program: GitProgram, directory: Path, budget: Budget, *, scratch: Path
) -> None:
    """Reject a working copy that no node would stage.

    A directory that is not the top of a work tree is read unchanged.

    Args:
        program: Git.
        directory: The working copy; changes that are not committed count.
        budget: What the release may take.
        scratch: An existing directory for temporary files.

    Raises:
        IntegrityError: The tree has a forbidden member, or exceeds the budget.
        InvalidInputError: git cannot commit it.
        UnavailableError: git reached the timeout.
        StateError: git is not installed.
    """
    top = directory.resolve()
    where = str(directory)
    if not (top / ".git").exists():
        tree_digest(top, where=where)
        return
    with TemporaryDirectory(dir=scratch, prefix=".check-") as temporary:
        repository, work = Path(temporary, "git"), Path(temporary, "work")
        repository.mkdir()
        work.mkdir()
        tree = _committed(program, top, repository, where=where)
        check_out(program, repository, [(where, tree, "tree")], work, budget)
        tree_digest(work / "tree", where=where)


def _committed(program: GitProgram, top: Path, repository: Path, *, where: str) -> str:
    """Return the id of the tree; its objects are in `repository` and in the working copy."""

    def refused(reason: str) -> InvalidInputError:
        return InvalidInputError(f"git cannot commit it: {reason}", where=where)

    asked = ("--path-format=absolute", "--git-common-dir", "--git-path", "index")
    printed = program.run(top / ".git", "rev-parse", *asked, cwd=top, failure=refused)
    common, index = map(Path, printed.decode("utf-8", "surrogateescape").splitlines())
    make_bare(repository, alternates=[common])
    for file in (*index.parent.glob("index"), *index.parent.glob("sharedindex.*")):
        shutil.copyfile(file, repository / file.name)
    own = ("-c", "core.bare=false", "-c", f"core.excludesFile={common}/info/exclude")
    program.run(repository, *own, f"--work-tree={top}", "add", "-A", cwd=top, failure=refused)
    tree = program.run(repository, "write-tree", failure=refused).decode().strip()
    (repository / "index").unlink()
    return tree
