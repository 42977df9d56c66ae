"""Writes and unpacks release packs: a package's directory as one tar file.

The same tree gives the same bytes. `releases.forge.tar` reads packs with suspicion.
"""

import gzip
import os
import re
import tarfile
from pathlib import Path

from localpuppet.base.machine.files import disk_errors
from localpuppet.node.releases.forge.tar import MODES, TarRules
from localpuppet.node.releases.forge.tar import unpack as unpack_tar
from localpuppet.node.releases.limits import LIMITS, Limits

_RULES = TarRules(
    top=re.compile(rb"[0-9a-f]{64}\Z"),
    hint="a pack is made by 'localpuppet release package --format tar'",
)


def write(directory: Path, target: Path, *, time: int) -> None:
    """Write a package's directory as a pack.

    Args:
        directory: Its name is the pack's only name at the top.
        target: The new file.
        time: The time of every member, seconds since 1970.
    """
    with (
        disk_errors(target),
        target.open("xb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=9, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", encoding="utf-8", errors="surrogateescape") as tar,
    ):
        for path in [directory, *sorted(directory.rglob("*"), key=os.fsencode)]:
            _write_member(tar, path, str(path.relative_to(directory.parent)), time)


def _write_member(tar: tarfile.TarFile, path: Path, name: str, time: int) -> None:
    member = tarfile.TarInfo(name)
    member.mtime = time
    member.uname = member.gname = "root"
    if path.is_symlink():
        member.type, member.mode = tarfile.SYMTYPE, 0o777
        member.linkname = os.readlink(path)  # noqa: PTH115 - Path would tidy the target up
    elif path.is_dir():
        member.type, member.mode = tarfile.DIRTYPE, MODES["directory"]
    else:
        status = path.stat()
        member.size = status.st_size
        member.mode = MODES["executable" if status.st_mode & 0o100 else "file"]
    # One header where it can hold the name; GNU's format has no limit, and a header more.
    tar.format = tarfile.USTAR_FORMAT
    try:
        member.tobuf(tar.format, "utf-8", "surrogateescape")
    except ValueError:
        tar.format = tarfile.GNU_FORMAT
    if not member.isreg():
        tar.addfile(member)
        return
    with path.open("rb") as content:
        tar.addfile(member, content)


def unpack(pack: Path, target: Path, *, limits: Limits = LIMITS) -> Path:
    """Unpack a pack into an empty directory; return the package's directory below it.

    Only the form is verified: see `releases.packages.directory.load`.

    Args:
        pack: The file.
        target: An empty directory.
        limits: The size limits.

    Raises:
        InvalidInputError: The file cannot be read, is not a regular file, or others could write it.
        IntegrityError: The file is not a pack, is damaged or too large, or has a forbidden member.
    """
    return unpack_tar(pack, target, rules=_RULES, limits=limits)
