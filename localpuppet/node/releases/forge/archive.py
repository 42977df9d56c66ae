"""Unpacks and copies module archives, and checks that one is the expected module."""

import hashlib
import re
from pathlib import Path

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.machine.files import disk_errors, open_user_file
from localpuppet.node.releases.forge.ports import ForgeRelease
from localpuppet.node.releases.forge.tar import CHUNK, TarRules, unpack
from localpuppet.node.releases.limits import Budget, Limits

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
