"""The port to git repositories; `releases.git.mirrors` implements it."""

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from localpuppet.node.releases.git.signer import Countersignature, Signer
from localpuppet.node.releases.git.tags import TagObject
from localpuppet.node.releases.limits import Budget


class Repository(Protocol):
    """Git repositories by URL, each with a mirror on this machine.

    A tag that is in the mirror already is not asked for again unless `refresh` says so.
    """

    def rubbish(self) -> Sequence[Path]:
        """Return what a process that died left half made. Call it with the store's lock only."""
        ...

    def fetch(self, tags: Sequence[tuple[str, str]], *, refresh: bool) -> None:
        """Bring tags into their mirrors, several repositories at a time.

        Args:
            tags: Pairs of URL and tag.
            refresh: Ask the server also for tags that are there.

        Raises:
            InvalidInputError: A repository has no such tag.
            UnavailableError: A repository cannot be had.
            IntegrityError: What the server sent is broken.
        """
        ...

    def arrivals(
        self, tags: Sequence[tuple[str, str]], *, refresh: bool
    ) -> Generator[list[tuple[str, str]], None, None]:
        """Do what `fetch` does, and yield tags as they arrive.

        Args:
            tags: Pairs of URL and tag.
            refresh: Ask the server also for tags that are there.

        Yields:
            Some of the tags, each once; others are fetched meanwhile, until the generator is
            closed.

        Raises:
            InvalidInputError: A repository has no such tag.
            UnavailableError: A repository cannot be had.
            IntegrityError: What the server sent is broken.
        """
        ...

    def fetch_commits(self, commits: Sequence[tuple[str, str]]) -> None:
        """Bring commits into their mirrors, several repositories at a time.

        Args:
            commits: Pairs of URL and full commit id; those that are there are not asked for.

        Raises:
            UnavailableError: A repository or commit cannot be had.
            IntegrityError: What the server sent is broken.
        """
        ...

    def commit_trees(self, commits: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        """Return the tree ids of fetched commits.

        Raises:
            UnavailableError: One was not fetched.
        """
        ...

    def tag(self, url: str, tag: str) -> TagObject:
        """Return what a fetched tag is.

        Raises:
            IntegrityError: It is nested, misnamed, or points at no commit.
            UnavailableError: It was not fetched.
        """
        ...

    def tags(self, tags: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], TagObject]:
        """Return what fetched tags are, by URL and tag: `tag` for many of them at once.

        Raises:
            IntegrityError: One is nested, misnamed, or points at no commit.
            UnavailableError: One was not fetched.
        """
        ...

    def verify_signature(self, url: str, tag: str, *, signers: Path) -> Signer:
        """Hold a tag's own signature against pinned keys; return who made it.

        Args:
            url: The repository.
            tag: A fetched tag.
            signers: An OpenSSH allowed-signers file, or OpenPGP public keys in ASCII armour.

        Raises:
            IntegrityError: It is lightweight, unsigned, or signed by nobody in `signers`.
        """
        ...

    def countersignatures(
        self, url: str, tag: str, *, signers: Path, source: str, refresh: bool
    ) -> Sequence[Countersignature]:
        """Judge the countersignatures of a fetched tag, as far as they were fetched.

        Args:
            url: The repository.
            tag: A fetched tag.
            signers: As for `verify_signature`.
            source: The source that each must name.
            refresh: Fetch first what the server has of them.

        Returns:
            Each that is there, also those that do not count.

        Raises:
            UnavailableError: The repository cannot be had.
            IntegrityError: There are too many, or what the server sent is broken.
        """
        ...

    def write(
        self, trees: Sequence[tuple[str, str, str]], directory: Path, budget: Budget
    ) -> Generator[str, None, None]:
        """Write trees out as they are in git, byte for byte.

        Args:
            trees: URL, tree id, and the name of the directory to make for it.
            directory: An existing, empty directory.
            budget: What may be written; each tree is counted before anything of it is written.

        Yields:
            Names of directories, each when it is whole; others may be written meanwhile, until
            the generator is closed.

        Raises:
            IntegrityError: A tree holds a submodule, is too large, too deep or has too many
                members, or its objects are not there.
        """
        ...

    def commit_time(self, url: str, commit: str) -> int:
        """Return when a fetched commit was made, in seconds since 1970.

        Raises:
            IntegrityError: It is not there.
        """
        ...

    def files(self, url: str, commit: str, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return the bytes of files at the top of a fetched commit; those that are there.

        Raises:
            IntegrityError: One is not an ordinary file, or larger than 1 MiB.
        """
        ...

    def refs(self, urls: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Ask repositories for all their refs, several at a time; nothing is fetched.

        Returns:
            URL → full name of a ref, or HEAD → the commit behind it (that of an annotated tag, not
            the tag object).

        Raises:
            UnavailableError: A repository cannot be had.
        """
        ...
