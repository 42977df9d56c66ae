"""The port to a forge; `releases.forge.client` and `releases.forge.directory` implement it."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from localpuppet.base.errors import IntegrityError
from localpuppet.node.releases.forge.names import Slug
from localpuppet.node.releases.forge.versions import ModuleVersion


@dataclass(frozen=True, slots=True)
class ForgeRelease:
    """One version of a module.

    Attributes:
        slug: OWNER/NAME.
        version: The version.
    """

    slug: Slug
    version: ModuleVersion

    @property
    def file(self) -> str:
        """The name of its archive."""
        return f"{self.slug.dashed}-{self.version}.tar.gz"

    def __str__(self) -> str:
        return f"{self.slug} {self.version}"


class ModuleForge(Protocol):
    """A forge: a source of module archives."""

    def versions(self, slugs: Sequence[Slug]) -> Mapping[Slug, Sequence[ModuleVersion]]:
        """Return the available versions of modules, several modules at a time.

        Raises:
            InvalidInputError: A module does not exist.
            UnavailableError: The forge is unreachable.
        """

    def digests(self, releases: Sequence[ForgeRelease]) -> Mapping[ForgeRelease, str]:
        """Return the SHA-256 of archives as the forge reports it; empty if it reports none.

        Raises:
            InvalidInputError: A release does not exist.
            UnavailableError: The forge is unreachable.
        """

    def archives(
        self, wanted: Mapping[ForgeRelease, str]
    ) -> Generator[tuple[ForgeRelease, Path, str], None, None]:
        """Get archives, several at a time.

        Args:
            wanted: Releases, and the pinned SHA-256 of each; empty for none.

        Yields:
            Release, its archive, and the archive's SHA-256, in any order. The archive exists until
            the generator resumes.

        Raises:
            InvalidInputError: A release does not exist.
            IntegrityError: An archive's digest differs from the pin, or from the forge's.
            UnavailableError: The forge is unreachable.
        """


def other_archive(release: ForgeRelease, *, pinned: str, now: str) -> IntegrityError:
    """Return the error for an archive that differs from its pin."""
    return IntegrityError(
        f"the archive has different bytes: it was {pinned[:16]}…, now it is {now[:16]}…",
        where=str(release),
        hint="find out who published it again and why; '--accept-moved' accepts the new bytes",
    )
