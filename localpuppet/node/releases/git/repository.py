"""The port to git repositories; `releases.git.mirrors` implements it."""

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from localpuppet.node.releases.git.names import TagObject
from localpuppet.node.releases.git.signatures import Countersignature, TagSigner
from localpuppet.node.releases.limits import Budget


class Repository(Protocol):
    """Git repositories by URL, each with a mirror on this machine.

    A tag that the mirror has is fetched again only with `refresh`.
    """

    def rubbish(self) -> Sequence[Path]:
        """Return incomplete files that a dead process left. The caller holds the store's lock."""

    def fetch(self, tags: Sequence[tuple[str, str]], *, refresh: bool) -> None:
        """Bring tags into their mirrors, several repositories at a time.

        Args:
            tags: Pairs of URL and tag.
            refresh: Ask the server even for tags that the mirror has.

        Raises:
            InvalidInputError: A repository has no such tag.
            UnavailableError: A repository cannot be fetched.
            IntegrityError: The server sent corrupt data.
        """

    def arrivals(
        self, tags: Sequence[tuple[str, str]], *, refresh: bool
    ) -> Generator[list[tuple[str, str]], None, None]:
        """Do what `fetch` does, and yield tags as they arrive.

        Args:
            tags: Pairs of URL and tag.
            refresh: Ask the server even for tags that the mirror has.

        Yields:
            Some of the tags, each once; others are fetched meanwhile, until the caller closes the
            generator.

        Raises:
            InvalidInputError: A repository has no such tag.
            UnavailableError: A repository cannot be fetched.
            IntegrityError: The server sent corrupt data.
        """

    def fetch_commits(self, commits: Sequence[tuple[str, str]]) -> None:
        """Bring commits into their mirrors, several repositories at a time.

        Args:
            commits: Pairs of URL and full commit id; commits that the mirror has are not fetched.

        Raises:
            UnavailableError: A repository or commit cannot be fetched.
            IntegrityError: The server sent corrupt data.
        """

    def commit_trees(self, commits: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        """Return the tree ids of fetched commits.

        Raises:
            UnavailableError: A commit was not downloaded.
        """

    def tag(self, url: str, tag: str) -> TagObject:
        """Return a fetched tag.

        Raises:
            InvalidInputError: The tag is a tag of a tag.
            IntegrityError: The tag is misnamed, or does not point at a commit.
            UnavailableError: The tag was not downloaded.
        """

    def tags(self, tags: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], TagObject]:
        """Return many fetched tags at once, by URL and tag; see `tag`.

        Raises:
            InvalidInputError: A tag is a tag of a tag.
            IntegrityError: A tag is misnamed, or does not point at a commit.
            UnavailableError: A tag was not downloaded.
        """

    def verify_signature(self, url: str, tag: str, *, signers: Path) -> TagSigner:
        """Verify a tag's own signature with pinned keys; return the signer.

        Args:
            url: The repository.
            tag: A fetched tag.
            signers: An OpenSSH allowed-signers file, or OpenPGP public keys in ASCII armour.

        Raises:
            IntegrityError: The tag is lightweight, unsigned, or has no signer from `signers`.
        """

    def countersignatures(
        self, url: str, tag: str, *, signers: Path, source: str, refresh: bool
    ) -> Sequence[Countersignature]:
        """Judge the fetched countersignatures of a fetched tag.

        Args:
            url: The repository.
            tag: A fetched tag.
            signers: As for `verify_signature`.
            source: The source that each must name.
            refresh: Fetch the server's countersignatures first.

        Returns:
            All countersignatures, including those that do not count.

        Raises:
            UnavailableError: The repository cannot be fetched.
            IntegrityError: The tag has too many, or the server sent corrupt data.
        """

    def write(
        self, trees: Sequence[tuple[str, str, str]], directory: Path, budget: Budget
    ) -> Generator[str, None, None]:
        """Write trees byte for byte as git has them.

        Args:
            trees: URL, tree id, and the name of the new directory.
            directory: An existing, empty directory.
            budget: The limits; each tree is counted before any of it is written.

        Yields:
            Names of directories, each when it is complete; others may be written meanwhile, until
            the caller closes the generator.

        Raises:
            IntegrityError: A tree holds a submodule, is too large, too deep or has too many
                members, or objects are missing.
        """

    def commit_time(self, url: str, commit: str) -> int:
        """Return when a fetched commit was made, in seconds since 1970.

        Raises:
            IntegrityError: The commit is missing.
        """

    def files(self, url: str, commit: str, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return the bytes of files at the top of a fetched commit; missing files are left out.

        Raises:
            IntegrityError: A file is not regular, or larger than 1 MiB.
        """

    def refs(self, urls: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Ask repositories for all their refs, several at a time; nothing is fetched.

        Returns:
            URL → full name of a ref, or HEAD → the commit behind it (that of an annotated tag, not
            the tag object).

        Raises:
            UnavailableError: A repository is unreachable.
        """
