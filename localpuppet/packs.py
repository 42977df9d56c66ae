"""Release packs: a package's directory as one tar file.

Owns: writing it so that the same tree gives the same bytes, and unpacking one that may be hostile.
The reader is not tarfile's: it takes the four kinds of members that the writer makes and refuses
everything else before anything is made on disk. Invariants: what is unpacked is below the target,
and goes through directories only that this call has made; memory does not depend on the pack.
"""

import gzip
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from localpuppet.errors import IntegrityError
from localpuppet.files import open_user_file, state_problem
from localpuppet.model.tree import check_link, check_path

BLOCK = 512
CHUNK = 1024 * 1024
MAX_NAME = 4096
MODES = {"directory": 0o755, "executable": 0o555, "file": 0o444}
_ID = re.compile(r"[0-9a-f]{64}\Z")
_LONG = {tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a pack may take.

    Attributes:
        file: Bytes of the pack itself.
        unpacked: Bytes of everything in it.
        members: How many files, links and directories.
    """

    file: int = 1024**3
    unpacked: int = 4 * 1024**3
    members: int = 500_000


LIMITS = Limits()


def write(directory: Path, target: Path, *, time: int) -> None:
    """Write a package's directory as a pack.

    Args:
        directory: Its name is the pack's only name at the top.
        target: The file to make.
        time: The time of every member, seconds since 1970.

    Raises:
        StateError: The disk refused.
    """
    try:
        with (
            target.open("xb") as file,
            gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=9, mtime=0) as packed,
            # GNU's format has no limit on names and nothing of the machine in its headers.
            tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
        ):
            for path in [directory, *sorted(directory.rglob("*"), key=os.fsencode)]:
                _write_member(tar, path, str(path.relative_to(directory.parent)), time)
    except OSError as error:
        raise state_problem(error, target) from error


def _write_member(tar: tarfile.TarFile, path: Path, name: str, time: int) -> None:
    member = tarfile.TarInfo(name)
    member.mtime = time
    member.uname = member.gname = "root"
    if path.is_symlink():
        member.type, member.mode = tarfile.SYMTYPE, 0o777
        member.linkname = os.readlink(path)  # noqa: PTH115 - Path would tidy the target up
        tar.addfile(member)
    elif path.is_dir():
        member.type, member.mode = tarfile.DIRTYPE, MODES["directory"]
        tar.addfile(member)
    else:
        status = path.stat()
        member.size = status.st_size
        member.mode = MODES["executable" if status.st_mode & 0o100 else "file"]
        with path.open("rb") as content:
            tar.addfile(member, content)


def unpack(pack: Path, target: Path, *, limits: Limits = LIMITS) -> Path:
    """Unpack a pack into an empty directory; return the package's directory below it.

    Nothing in it is verified but its form: see `packages.load`.

    Args:
        pack: The file.
        target: An empty directory.
        limits: What it may take.

    Raises:
        InvalidInputError: It cannot be read, is no regular file, or others could write it.
        IntegrityError: It is no pack, is damaged or too large, or holds what must not be in one.
        StateError: The disk refused.
    """
    where = str(pack)
    with open_user_file(pack, limit=limits.file) as raw:
        start = raw.read(2)
        raw.seek(0)
        # A plain tar is fine: somebody else has unpacked it.
        packed = start == b"\x1f\x8b"
        stream: _Stream = gzip.GzipFile(fileobj=raw) if packed else raw
        try:
            return _Unpacking(stream, target, where, limits).run()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise IntegrityError(f"is damaged: {error}", where=where) from error
        except OSError as error:
            raise state_problem(error, target) from error


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Unpacking:
    """One pack on its way to disk."""

    def __init__(self, stream: _Stream, target: Path, where: str, limits: Limits) -> None:
        self._stream = stream
        self._target = target
        self._where = where
        self._limits = limits
        self._left = limits.unpacked
        self._top = ""
        self._made = {""}

    def run(self) -> Path:
        for member in self._members():
            self._make(member)
        if not self._top:
            raise IntegrityError("is empty", where=self._where)
        return self._target / self._top

    def _refuse(self, what: str, name: str) -> IntegrityError:
        return IntegrityError(
            what,
            where=f"{self._where}: {name[:120]!r}",
            hint="a pack is made by 'localpuppet release package --format tar'",
        )

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) != size:
            raise EOFError("it ends too early")
        return data

    def _members(self) -> Iterator[tarfile.TarInfo]:
        """Yield each member; its content is next in the stream."""
        long: dict[bytes, str] = {}
        count = 0
        while True:
            block = self._read(BLOCK)
            if not block.strip(b"\0"):
                return
            try:
                member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except tarfile.HeaderError as error:
                raise IntegrityError(f"is no tar file: {error}", where=self._where) from error
            count += 1
            if count > self._limits.members:
                raise self._refuse(f"too many members: at most {self._limits.members}", member.name)
            if member.size < 0 or member.size > self._left:
                raise self._refuse(f"too large: at most {self._limits.unpacked} bytes", member.name)
            self._left -= member.size
            if member.type in _LONG:
                if member.size > MAX_NAME or member.type in long:
                    raise self._refuse("a name is too long", member.name)
                data = self._read(-(-member.size // BLOCK) * BLOCK)[: member.size]
                long[member.type] = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
                continue
            member.name = long.pop(tarfile.GNUTYPE_LONGNAME, member.name)
            member.linkname = long.pop(tarfile.GNUTYPE_LONGLINK, member.linkname)
            yield member

    def _make(self, member: tarfile.TarInfo) -> None:
        name = member.name.removesuffix("/") if member.isdir() else member.name
        check_path(os.fsencode(name), where=self._where)
        top, _, inside = name.partition("/")
        self._top = self._top or top
        if top != self._top or not _ID.match(top):
            raise self._refuse("is not below the pack's one directory", name)
        parent = name.rpartition("/")[0]
        if parent not in self._made:
            raise self._refuse("comes before its directory, or goes through a link", name)
        path = self._target / name
        if path.is_symlink() or path.exists():
            raise self._refuse("is there twice", name)
        if member.isdir() and member.size == 0:
            path.mkdir()
            self._made.add(name)
        elif member.issym() and member.size == 0:
            check_link(os.fsencode(inside), os.fsencode(member.linkname), where=self._where)
            path.symlink_to(member.linkname)
        elif member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
            self._make_file(member, path)
        else:
            raise self._refuse("is no ordinary file, directory or symlink", name)

    def _make_file(self, member: tarfile.TarInfo, path: Path) -> None:
        kind = "executable" if member.mode & 0o100 else "file"
        left = member.size
        with path.open("xb") as file:
            while left:
                data = self._read(min(left, CHUNK))
                file.write(data)
                left -= len(data)
            os.fchmod(file.fileno(), MODES[kind])
        self._read(-member.size % BLOCK)
