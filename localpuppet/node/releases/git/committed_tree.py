"""Checks the tree that committing a working copy would give, written as a node stages it.

The working copy stays unchanged, and its repository's configuration runs no program.
"""

import shutil
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.releases.git.checkout import check_out
from localpuppet.node.releases.git.program import GitProgram, make_bare
from localpuppet.node.releases.limits import Budget
from localpuppet.node.releases.store import tree_digest

# Attributes by which a work tree has other bytes than git stores; LFS and git-crypt are filters.
_CONVERTING = ("filter", "ident", "working-tree-encoding", "eol")


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
        InvalidInputError: git cannot commit it, converts a file of it, or would commit a clone of
            another repository as a link.
        UnavailableError: git reached the timeout.
        StateError: git is not installed.
    """
    top = directory.resolve()
    where = str(directory)
    if not (top / ".git").exists():
        tree_digest(top, where=where)
        return
    _refuse_conversions(program, top, where=where)
    with TemporaryDirectory(dir=scratch, prefix=".check-") as temporary:
        repository, work = Path(temporary, "git"), Path(temporary, "work")
        repository.mkdir()
        work.mkdir()
        tree = _committed(program, top, repository, where=where)
        check_out(program, repository, [(where, tree, "tree")], work, budget)
        tree_digest(work / "tree", where=where)


def _refuse_conversions(program: GitProgram, top: Path, *, where: str) -> None:
    """Reject files of which git stores other bytes than the author sees."""

    def failed(reason: str) -> InvalidInputError:
        return InvalidInputError(f"git cannot read its attributes: {reason}", where=where)

    # The author's own configuration may name a file of attributes; none of this runs a program.
    own = {"GIT_CONFIG_GLOBAL": f"{program.env.get('HOME', '')}/.gitconfig"}
    git = partial(program.run, top / ".git", f"--work-tree={top}", cwd=top, failure=failed)
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    found = git("check-attr", "--stdin", "-z", *_CONVERTING, stdin=listed, env=own)
    fields = found.decode("utf-8", "backslashreplace").split("\0")
    for path, name, value in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
        if value not in ("unspecified", "unset", "lf"):
            raise InvalidInputError(
                f"git's attribute {name}={value} converts this file, and nodes get what git stores",
                where=f"{where}/{path}",
                hint="remove the attribute and run 'git add --renormalize .', or let Puppet fetch"
                " the file from elsewhere",
            )


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
    before = _links(program, repository)
    program.run(repository, *own, f"--work-tree={top}", "add", "-A", cwd=top, failure=refused)
    for path in sorted(_links(program, repository) - before):
        raise InvalidInputError(
            "is a clone of another repository, which git would commit as a link without its files",
            where=f"{where}/{path}",
            hint="let .gitignore name it if r10k made it, or remove it",
        )
    tree = program.run(repository, "write-tree", failure=refused).decode().strip()
    (repository / "index").unlink()
    return tree


def _links(program: GitProgram, repository: Path) -> set[str]:
    """Return the paths of other repositories in the index."""
    entries = program.run(repository, "ls-files", "--stage", "-z").decode("utf-8", "replace")
    return {e.partition("\t")[2] for e in entries.split("\0") if e.startswith("160000")}
