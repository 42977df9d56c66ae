"""The work tree of a user who makes a release: its state, and the tree that a commit would give.

Unlike a mirror this is the user's own repository, so the user's configuration applies to commands
of GitPython: identity, signing key, credentials, hooks. Only `GitWorkTree` uses it; its import
costs `release tag` 90 ms (ADR 1). What only reads a work tree uses `releases.git.program`: it
changes nothing, and the repository's configuration runs no program.
"""

import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from localpuppet.base.errors import (
    InvalidInputError,
    LocalpuppetError,
    StateError,
    UnavailableError,
)
from localpuppet.base.formats.text import one_line
from localpuppet.base.value import Value
from localpuppet.node.releases.git import git_names
from localpuppet.node.releases.git.access import SHA256_OBJECTS
from localpuppet.node.releases.git.program import GitProgram, check_out, make_bare
from localpuppet.node.releases.limits import Budget
from localpuppet.node.releases.store import tree_digest

REMOTE = "origin"


class GitWorkTree:
    """A git repository with a release at its top."""

    def __init__(self, directory: Path, *, timeout: float) -> None:
        import git
        from git.exc import GitCommandNotFound, InvalidGitRepositoryError, NoSuchPathError

        self.directory = directory
        self._where = str(directory)
        self._timeout = timeout
        # No prompt: a pipeline has no user. A signing key's own agent may still ask.
        self._env: Mapping[str, str] = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        try:
            self._repo = git.Repo(directory)
            top = self._repo.working_tree_dir
        except (InvalidGitRepositoryError, NoSuchPathError) as error:
            raise InvalidInputError(
                "is not the top directory of a git work tree",
                where=self._where,
                hint="a tag covers a whole repository: put manifest.yaml at its top",
            ) from error
        except GitCommandNotFound as error:
            raise StateError("git is not installed", hint="apt-get install git") from error
        if top is None or Path(top).resolve() != directory.resolve():
            raise InvalidInputError("has no work tree (it is a bare repository)", where=self._where)
        self._repo.git.update_environment(**self._env)
        self._run(
            *["rev-parse", "--git-dir"],
            failure=InvalidInputError,
            hint=f"if another user owns the clone: chown -R {os.geteuid()} {directory}",
        )
        if self._run("rev-parse", "--show-object-format").strip() != "sha1":
            raise InvalidInputError(
                SHA256_OBJECTS, where=self._where, hint="use a repository with SHA-1 names"
            )
        if not self._repo.head.is_valid():
            raise InvalidInputError("has no commit yet", where=self._where, hint="commit first")

    @property
    def commit(self) -> str:
        """The checked-out commit."""
        return self._repo.head.commit.hexsha

    def changes(self) -> list[str]:
        """Return the paths that differ from the commit, untracked ones included."""
        text = self._run("status", "--porcelain", "--untracked-files=all", "-z")
        return [entry[3:] for entry in text.split("\0") if entry[2:3] == " "]

    def tracked(self, name: str) -> bool:
        """Return whether the commit has the file `name`."""
        return bool(self._run("ls-tree", "--name-only", "HEAD", "--", name))

    def ignored(self, *patterns: str) -> list[str]:
        """Return files that git ignores, and that a tag therefore lacks."""
        arguments = ("--others", "--ignored", "--exclude-standard", "-z", "--", *patterns)
        return [path for path in self._run("ls-files", *arguments).split("\0") if path]

    def has_tag(self, tag: git_names.Tag) -> bool:
        return bool(self._run("for-each-ref", f"refs/tags/{tag}"))

    def tag_object(self, tag: git_names.Tag) -> tuple[str, bytes] | None:
        """Return id and bytes of the object of an annotated tag; `None` without one."""
        ref = f"refs/tags/{tag}"
        fields = self._run("for-each-ref", "--format=%(objectname) %(objecttype)", ref).split()
        if fields[1:] != ["tag"]:
            return None
        return fields[0], self._run("cat-file", "tag", fields[0]).encode("utf-8", "surrogateescape")

    def remote_tag(self, tag: git_names.Tag) -> str:
        """Return the id that the remote has for a tag; empty if it has no such tag."""
        if REMOTE not in [remote.name for remote in self._repo.remotes]:
            raise InvalidInputError(
                f"there is no remote {REMOTE!r} to push to",
                where=self._where,
                hint=f"'git remote add {REMOTE} URL', or --no-push",
            )
        text = self._run(
            *["ls-remote", "--tags", REMOTE, f"refs/tags/{tag}"],
            failure=UnavailableError,
            what=f"cannot ask {REMOTE}",
            hint="check that its host is up and that you may read from it; '--no-push' tags in"
            " this clone only",
        )
        ids = [
            line.split("\t")[0] for line in text.splitlines() if line.endswith(f"\trefs/tags/{tag}")
        ]
        return ids[0] if ids else ""

    def remote_url(self) -> str:
        """Return the URL of the remote, or empty."""
        if REMOTE not in [remote.name for remote in self._repo.remotes]:
            return ""
        return self._run("remote", "get-url", REMOTE).strip()

    def make_tag(self, tag: git_names.Tag, *, commit: str, message: str, sign: bool) -> None:
        self._run(
            *["tag", "--sign" if sign else "--annotate", "--message", message],
            *["--end-of-options", str(tag), commit],
            failure=InvalidInputError,
            what=f"cannot make the tag {tag}",
            hint=self._tag_hint(sign=sign),
        )

    def _tag_hint(self, *, sign: bool) -> str:
        key = "user.signingkey (and gpg.format for ssh keys)"
        if sign:
            return f"git needs {key}"
        if self._repo.config_reader().get_value("tag", "gpgSign", default=False):
            return f"tag.gpgSign makes git sign: set {key}, or 'git config tag.gpgSign false'"
        return "git needs user.name and user.email"

    def countersign(self, tag: git_names.Tag, tag_object: str, *, message: str) -> str:
        """Sign the object of a tag; return the ref of the countersignature."""
        name = git_names.countersignature_name(tag)
        # git signs tags below refs/tags only; what a killed one left there is overwritten.
        self._run(
            *["tag", "--sign", "--force", "--message", message],
            *["--end-of-options", name, tag_object],
            failure=InvalidInputError,
            what=f"cannot sign the tag {tag}",
            hint="git needs user.signingkey (and gpg.format for ssh keys)",
        )
        try:
            made = self._run("rev-parse", "--verify", f"refs/tags/{name}").strip()
            ref = f"{git_names.countersignature_refs(tag)}{made}"
            self._run("update-ref", ref, made)
        finally:
            self._run("update-ref", "-d", f"refs/tags/{name}")
        return ref

    def remove_ref(self, ref: str) -> None:
        """Remove a ref that was just made."""
        self._run("update-ref", "-d", ref)

    def push_ref(self, ref: str) -> None:
        """Push a ref; an existing ref is not moved."""
        self._run(
            *["push", "--quiet", REMOTE, f"{ref}:{ref}"],
            failure=UnavailableError,
            what=f"cannot push {_shown(ref)} to {REMOTE}",
            hint="check that you may push (the local copy was removed); '--no-push' signs in"
            " this clone only",
        )

    def is_signed(self, ref: str) -> bool:
        """Return whether a tag object carries a signature.

        The user's configuration may require signing. If ssh-keygen fails, git 2.39 makes an
        unsigned tag and exits with 0.
        """
        return "\n-----BEGIN " in self._run("cat-file", "tag", ref)

    def _run(
        self,
        verb: str,
        *arguments: str,
        failure: type[LocalpuppetError] = StateError,
        what: str = "",
        hint: str = "",
    ) -> str:
        status, out, err = self._repo.git.execute(
            ["git", verb, *arguments],
            with_extended_output=True,
            with_exceptions=False,
            strip_newline_in_stdout=False,
            kill_after_timeout=self._timeout,
        )
        if status != 0:
            error_text = one_line(" ".join(err.split()))[:500]
            raise failure(
                f"{what or f'git {verb} failed'}: {error_text}", where=self._where, hint=hint
            )
        return out


def _shown(ref: str) -> str:
    return f"the tag {ref.removeprefix('refs/tags/')}" if ref.startswith("refs/tags/") else ref


_GIT = ".git"


class Ignored(Value):
    """Paths that git ignores and does not track, relative to the top, without a final slash."""

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
    """Return what git ignores in a directory; nothing unless it is the top of a work tree."""
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


# Attributes by which a work tree has other bytes than git stores; LFS and git-crypt are filters.
_CONVERTING = ("filter", "ident", "working-tree-encoding", "eol")


def refuse_unstageable(
    program: GitProgram, directory: Path, budget: Budget, *, scratch: Path
) -> None:
    """Reject a working copy that no node would stage; changes that are not committed count.

    A directory that is not the top of a work tree is read unchanged. Temporary files are in the
    directory `scratch`.

    Raises:
        IntegrityError: The tree has a forbidden member, or exceeds the budget.
        InvalidInputError: git cannot commit it, converts a file of it, or would commit a clone of
            another repository as a link.
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
