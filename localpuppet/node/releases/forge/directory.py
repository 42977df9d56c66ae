"""A directory of archives as a forge: the mirror of a site without internet access.

forge: {url: file:///srv/forge}      # puppetlabs-stdlib-9.4.1.tar.gz, …
"""

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.machine.files import make_private, remove_tree
from localpuppet.node.releases.forge.archive import copy_archive, sha256_of
from localpuppet.node.releases.forge.names import Slug
from localpuppet.node.releases.forge.ports import ForgeRelease, other_archive
from localpuppet.node.releases.forge.versions import ModuleVersion


class DirectoryForge:
    """Archives in a directory, named OWNER-NAME-VERSION.tar.gz.

    Args:
        directory: The directory; the mirror's maintainer may write there at any time.
        scratch: The state's own directory, for the archive that is being read.
    """

    def __init__(self, directory: Path, scratch: Path) -> None:
        self._directory = directory
        self._scratch = scratch

    def versions(self, slugs: Sequence[Slug]) -> Mapping[Slug, Sequence[ModuleVersion]]:
        """Return the versions of modules; see `node.releases.forge.ports.ModuleForge`."""
        return {slug: self._versions(slug) for slug in slugs}

    def _versions(self, slug: Slug) -> list[ModuleVersion]:
        self._look()
        versions = []
        for file in sorted(self._directory.glob(f"{slug.dashed}-*.tar.gz")):
            text = file.name.removeprefix(f"{slug.dashed}-").removesuffix(".tar.gz")
            try:
                versions.append(ModuleVersion.parse(text, where=str(file)))
            except InvalidInputError:
                continue
        if not versions:
            raise InvalidInputError(
                f"the forge has no module {slug}",
                where=str(self._directory),
                hint=f"put {slug.dashed}-VERSION.tar.gz there",
            )
        return versions

    def digests(self, releases: Sequence[ForgeRelease]) -> Mapping[ForgeRelease, str]:
        """Return digests of archives; see `node.releases.forge.ports.ModuleForge`."""
        self._look()
        return {release: sha256_of(self._file(release)) for release in releases}

    def archives(
        self, wanted: Mapping[ForgeRelease, str]
    ) -> Generator[tuple[ForgeRelease, Path, str], None, None]:
        """Copy archives; see `node.releases.forge.ports.ModuleForge`."""
        self._look()
        make_private(self._scratch)
        copy = self._scratch / ".archive"
        try:
            for release, pinned in wanted.items():
                remove_tree(copy)
                # The hashed copy is unpacked, whatever the file is by then.
                sha256 = copy_archive(self._file(release), copy)
                if pinned and sha256 != pinned:
                    raise other_archive(release, pinned=pinned, now=sha256)
                yield release, copy, sha256
        finally:
            remove_tree(copy)

    def _look(self) -> None:
        if not self._directory.is_dir():
            raise UnavailableError(
                "the forge's directory does not exist", where=str(self._directory)
            )

    def _file(self, release: ForgeRelease) -> Path:
        file = self._directory / release.file
        if not file.is_file():
            raise InvalidInputError(
                f"the forge has no archive of {release}",
                where=str(self._directory),
                hint=f"put {release.file} there",
            )
        return file
