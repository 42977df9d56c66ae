"""The work tree of somebody who makes a release: its state, its tags, its remote.

Owns: every use of GitPython. Unlike the mirrors (`releases.git.mirrors`) this is the user's own
repository, so the user's own configuration holds: identity, signing key, credentials, hooks.
GitPython costs 90 ms of imports, which only `release tag` pays (ADR 1).
"""

from collections.abc import Mapping
from pathlib import Path

import git
from git.exc import GitCommandNotFound, InvalidGitRepositoryError, NoSuchPathError

from localpuppet.errors import InvalidInputError, LocalpuppetError, StateError, UnavailableError
from localpuppet.formats.text import one_line
from localpuppet.releases.git.names import Tag

REMOTE = "origin"


class WorkTree:
    """A git repository with a release at its top.

    Args:
        directory: The top directory.
        timeout: Seconds for one command.

    Raises:
        InvalidInputError: It is not the top of a git work tree, or has no commit.
        StateError: git is not installed.
    """

    def __init__(self, directory: Path, *, timeout: float) -> None:
        self._where = str(directory)
        self._timeout = timeout
        # No prompt: nobody sits at a pipeline. A signing key's own agent may still ask.
        self._env: Mapping[str, str] = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        try:
            self._repo = git.Repo(directory)
            top = self._repo.working_tree_dir
        except (InvalidGitRepositoryError, NoSuchPathError) as error:
            raise InvalidInputError(
                "is not the top directory of a git work tree",
                where=self._where,
                hint="a tag names a whole repository: manifest.yaml stands at its top",
            ) from error
        except GitCommandNotFound as error:
            raise StateError("git is not installed", hint="apt-get install git") from error
        if top is None or Path(top).resolve() != directory.resolve():
            raise InvalidInputError("has no work tree (it is a bare repository)", where=self._where)
        self._repo.git.update_environment(**self._env)
        if not self._repo.head.is_valid():
            raise InvalidInputError("has no commit yet", where=self._where, hint="commit first")

    @property
    def commit(self) -> str:
        """The commit that is checked out."""
        return self._repo.head.commit.hexsha

    def changes(self) -> list[str]:
        """Return the paths that are not as the commit has them, untracked ones included.

        Raises:
            StateError: git failed.
        """
        text = self._run("status", "--porcelain", "--untracked-files=all", "-z")
        return [entry[3:] for entry in text.split("\0") if entry[2:3] == " "]

    def tracked(self, name: str) -> bool:
        """Return whether the commit has the file `name`.

        Raises:
            StateError: git failed.
        """
        return bool(self._run("ls-tree", "--name-only", "HEAD", "--", name))

    def ignored(self, *patterns: str) -> list[str]:
        """Return files that git ignores, and that a tag would therefore not have.

        Raises:
            StateError: git failed.
        """
        arguments = ("--others", "--ignored", "--exclude-standard", "-z", "--", *patterns)
        return [path for path in self._run("ls-files", *arguments).split("\0") if path]

    def has_tag(self, tag: Tag) -> bool:
        """Return whether there is such a tag here.

        Raises:
            StateError: git failed.
        """
        return bool(self._run("for-each-ref", f"refs/tags/{tag}"))

    def remote_has_tag(self, tag: Tag) -> bool:
        """Return whether the remote has such a tag.

        Raises:
            InvalidInputError: There is no remote `origin`.
            UnavailableError: It cannot be asked.
        """
        if REMOTE not in [remote.name for remote in self._repo.remotes]:
            raise InvalidInputError(
                f"there is no remote {REMOTE!r} to push to",
                where=self._where,
                hint=f"'git remote add {REMOTE} URL', or --no-push",
            )
        text = self._run(
            "ls-remote",
            "--tags",
            REMOTE,
            f"refs/tags/{tag}",
            failure=UnavailableError,
            what=f"cannot ask {REMOTE}",
            hint="is its host up, and may you read from it? --no-push tags here only",
        )
        return bool(text)

    def remote_url(self) -> str:
        """Return the URL of the remote; empty when there is none.

        Raises:
            StateError: git failed.
        """
        if REMOTE not in [remote.name for remote in self._repo.remotes]:
            return ""
        return self._run("remote", "get-url", REMOTE).strip()

    def make_tag(self, tag: Tag, *, commit: str, message: str, sign: bool) -> None:
        """Make an annotated tag at a commit.

        Raises:
            InvalidInputError: git does not make it: no identity, no key, a tag of that name.
        """
        self._run(
            "tag",
            "--sign" if sign else "--annotate",
            "--message",
            message,
            "--end-of-options",
            str(tag),
            commit,
            failure=InvalidInputError,
            what=f"cannot make the tag {tag}",
            hint="git needs user.signingkey (and gpg.format for ssh keys)"
            if sign
            else "git needs user.name and user.email",
        )

    def is_signed(self, tag: Tag) -> bool:
        """Return whether a tag carries a signature; the user's configuration may ask for one.

        Raises:
            StateError: git failed.
        """
        return "\n-----BEGIN " in self._run("cat-file", "tag", f"refs/tags/{tag}")

    def remove_tag(self, tag: Tag) -> None:
        """Remove a tag that was just made.

        Raises:
            StateError: git failed.
        """
        self._run("update-ref", "-d", f"refs/tags/{tag}")

    def push_tag(self, tag: Tag) -> None:
        """Push a tag; one that is there already is not moved.

        Raises:
            UnavailableError: It is not there now.
        """
        self._run(
            "push",
            "--quiet",
            REMOTE,
            f"refs/tags/{tag}:refs/tags/{tag}",
            failure=UnavailableError,
            what=f"cannot push the tag {tag} to {REMOTE}",
            hint="the tag was removed here again; may you push there? --no-push tags here only",
        )

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
            said = one_line(" ".join(err.split()))[:500]
            raise failure(f"{what or f'git {verb} failed'}: {said}", where=self._where, hint=hint)
        return out
