"""Archives of modules: the port to a forge, and what an archive must be.

Unreadable metadata has no dependencies here: Puppet reports what is wrong with it.

An archive is unpacked into the store once. Only a damaged tree, or another release with the same
module, needs it again, and the forge still has it then. So age decides.
"""

import hashlib
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.machine.files import disk_errors, open_user_file
from localpuppet.node.releases.forge.tar import CHUNK, TarRules, unpack
from localpuppet.node.releases.forge.versions import ModuleVersion, Range, Slug
from localpuppet.node.releases.limits import Budget, Limits


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


METADATA = "metadata.json"
MAX_METADATA = 1024 * 1024
LIMITS = Limits(file=256 * 1024**2, unpacked=1024**3, members=100_000)
_RULES = TarRules(
    top=re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}\Z"),
    hint="build module archives with 'pdk build'",
    foreign=True,
)


def unpack_module(archive: Path, target: Path, *, release: ForgeRelease, budget: Budget) -> Path:
    """Unpack a module's archive into an empty directory.

    Args:
        archive: The file.
        target: The directory.
        release: The expected module and version.
        budget: The limits of the release that needs the module.

    Returns:
        The module's directory, below `target`.

    Raises:
        IntegrityError: The archive is damaged, holds a forbidden member, or is another module.
    """
    try:
        top = unpack(archive, target, rules=_RULES, limits=LIMITS, budget=budget)
    except IntegrityError as error:
        problem = error.at(str(release))
        problem.hint = problem.hint or "name another version, or the module's git repository"
        raise problem from error
    metadata = _metadata(top / METADATA, release)
    name = str(metadata.get("name", "")).replace("/", "-", 1)
    if (name.lower(), metadata.get("version")) != (release.slug.dashed.lower(), release.version):
        raise IntegrityError(
            f"its metadata.json names {name[:120]!r} {str(metadata.get('version'))[:60]!r}",
            where=str(release),
            hint="check 'forge.url': the forge sent another module's archive",
        )
    return top


def _metadata(file: Path, release: ForgeRelease) -> dict[str, object]:
    if file.is_symlink() or not file.is_file() or file.stat().st_size > MAX_METADATA:
        raise IntegrityError("has no metadata.json of at most 1 MiB at its top", where=str(release))
    try:
        return read_metadata(file.read_bytes())
    except InvalidInputError as error:
        raise IntegrityError(
            f"its metadata.json is refused: {error}", where=str(release)
        ) from error


def read_metadata(data: bytes) -> dict[str, object]:
    """Return the content of a `metadata.json`, in any form that Puppet reads.

    Raises:
        InvalidInputError: The file is not a JSON object.
    """
    try:
        metadata = loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InvalidInputError("is not JSON", where=METADATA) from error
    if not isinstance(metadata, dict):
        raise InvalidInputError("is not a JSON object", where=METADATA)
    return metadata


def copy_archive(file: Path, target: Path) -> str:
    """Copy an archive that may change meanwhile; return the SHA-256 of the copy.

    Args:
        file: The archive.
        target: A file that does not exist yet.

    Raises:
        InvalidInputError: The archive cannot be read, is not a regular file, is too large, or is
            writable by other users.
    """
    sha256 = hashlib.sha256()
    with open_user_file(file, limit=LIMITS.file) as source:
        left = LIMITS.file
        with disk_errors(target), target.open("xb") as copy:
            while left and (data := source.read(min(CHUNK, left))):
                sha256.update(data)
                copy.write(data)
                left -= len(data)
    return sha256.hexdigest()


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def read_file(module: Path) -> Mapping[str, object]:
    """Return the metadata of a module in a directory; empty if it is missing or unreadable."""
    file = module / METADATA
    try:
        if not file.is_file() or file.stat().st_size > MAX_METADATA:
            return {}
        return read_metadata(file.read_bytes())
    except (OSError, InvalidInputError):
        return {}


def unmet(modules: Mapping[str, Mapping[str, object]]) -> tuple[str, ...]:
    """Return the unmet dependencies of modules, as texts.

    Args:
        modules: The release's modules by name, with their metadata.
    """
    problems = []
    for name in sorted(modules):
        asked = modules[name].get("dependencies")
        for item in asked if isinstance(asked, list) else []:
            if isinstance(item, dict):
                problem = _problem(item, modules)
                if problem:
                    problems.append(f"{name}: {METADATA} requires {problem}")
    return tuple(problems)


def _problem(item: Mapping[str, object], modules: Mapping[str, Mapping[str, object]]) -> str:
    asked = str(item.get("name", ""))[:120]
    wanted = str(item.get("version_requirement") or "")[:200]
    module = asked.replace("/", "-", 1).partition("-")[2]
    if module not in modules:
        return (
            f"{asked} {wanted}, which the release lacks".replace(" ,", ",")
            + " (add it to 'modules:' in manifest.yaml, then run 'localpuppet release lock')"
        )
    try:
        if not wanted:
            return ""
        version = ModuleVersion.parse(str(modules[module].get("version")), where="")
        if Range.parse(wanted, where="").has(version):
            return ""
    except InvalidInputError:
        return ""  # the version or the range is malformed
    return f"{asked} {wanted}, and the release has {version} (change a version in manifest.yaml)"


PLACE = "forge"


def old_archives(state: Path, *, since: float) -> list[Path]:
    """Return the archives, whole ones and parts, that were written before a moment.

    Args:
        state: The state directory.
        since: The moment, in seconds since 1970.
    """
    directory = state / PLACE
    if not directory.is_dir():
        return []
    with disk_errors(directory):
        files = sorted(path for path in directory.iterdir() if path.is_file())
        return [path for path in files if path.lstat().st_mtime < since]
