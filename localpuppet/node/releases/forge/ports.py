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
    """A place that has archives of modules."""

    def versions(self, slugs: Sequence[Slug]) -> Mapping[Slug, Sequence[ModuleVersion]]:
        """Return the versions of modules that can be had, several modules at a time.

        Raises:
            InvalidInputError: A module is not there.
            UnavailableError: The forge cannot be asked.
        """
        ...

    def digests(self, releases: Sequence[ForgeRelease]) -> Mapping[ForgeRelease, str]:
        """Return the SHA-256 of archives as the forge says it; empty where it says none.

        Raises:
            InvalidInputError: A release is not there.
            UnavailableError: The forge cannot be asked.
        """
        ...

    def archives(
        self, wanted: Mapping[ForgeRelease, str]
    ) -> Generator[tuple[ForgeRelease, Path, str], None, None]:
        """Bring archives, several at a time.

        Args:
            wanted: Releases, and the SHA-256 that each was pinned with; empty for none.

        Yields:
            Release, its archive, and the SHA-256 of that, in any order. Whoever takes one has it
            until the generator goes on.

        Raises:
            InvalidInputError: A release is not there.
            IntegrityError: An archive is not what it was pinned as, or what the forge says.
            UnavailableError: The forge cannot be had.
        """
        ...


def other_archive(release: ForgeRelease, *, pinned: str, now: str) -> IntegrityError:
    """Return the alarm of an archive that is not what was pinned."""
    return IntegrityError(
        f"the archive has other bytes: it was {pinned[:16]}…, now it is {now[:16]}…",
        where=str(release),
        hint="find out who published it again and why; --accept-moved takes it as it is now",
    )
