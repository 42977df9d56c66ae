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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from localpuppet.errors import IntegrityError
from localpuppet.machine.files import open_user_file, state_problem
from localpuppet.releases.limits import LIMITS, Limits
from localpuppet.releases.tree import check_link, check_path

BLOCK = 512
CHUNK = 1024 * 1024
MAX_NAME = 4096
MODES = {"directory": 0o755, "executable": 0o555, "file": 0o444}
_ID = re.compile(rb"[0-9a-f]{64}\Z")
_OCTAL = re.compile(rb"[0-7]{1,11}\Z")
_END = bytes(BLOCK)
# How many slashes the name of a tree in a pack has: ID/objects/SHA256.
_TREE = 2
_LONG = {tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}


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
            tarfile.open(
                fileobj=packed, mode="w", encoding="utf-8", errors="surrogateescape"
            ) as tar,
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

    Nothing in it is verified but its form: see `releases.packages.directory.load`.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    name: bytes
    kind: bytes
    size: int
    executable: bool
    target: bytes


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Unpacking:
    """One pack on its way to disk."""

    def __init__(self, stream: _Stream, target: Path, where: str, limits: Limits) -> None:
        self._stream = stream
        self._target = os.fsencode(target)
        self._where = where
        self._limits = limits
        self._left = limits.unpacked
        self._top = b""
        self._made = {b""}
        self._childless: set[bytes] = set()

    def run(self) -> Path:
        for member in self._members():
            self._make(member)
        if not self._top:
            raise IntegrityError("is empty", where=self._where)
        # A tree knows files and links only: what no digest covers must not come in.
        empty = min((name for name in self._childless if name.count(b"/") > _TREE), default=None)
        if empty is not None:
            raise self._refuse("is an empty directory", empty)
        return Path(os.fsdecode(self._target + b"/" + self._top))

    def _refuse(self, what: str, name: bytes) -> IntegrityError:
        shown = name.decode("utf-8", "backslashreplace")[:120]
        return IntegrityError(
            what,
            where=f"{self._where}: {shown!r}",
            hint="a pack is made by 'localpuppet release package --format tar'",
        )

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) != size:
            raise EOFError("it ends too early")
        return data

    def _members(self) -> Iterator["_Member"]:
        """Yield each member; its content is next in the stream."""
        long: dict[bytes, bytes] = {}
        count = 0
        while True:
            block = self._read(BLOCK)
            if block == _END:
                return
            member = self._parse(block)
            count += 1
            if count > self._limits.members:
                raise self._refuse(f"too many members: at most {self._limits.members}", member.name)
            if member.size > self._left:
                raise self._refuse(f"too large: at most {self._limits.unpacked} bytes", member.name)
            self._left -= member.size
            if member.kind in _LONG:
                if member.size > MAX_NAME or member.kind in long:
                    raise self._refuse("a name is too long", member.name)
                data = self._read(-(-member.size // BLOCK) * BLOCK)[: member.size]
                long[member.kind] = data.rstrip(b"\0")
                continue
            if long:
                member = replace(
                    member,
                    name=long.get(tarfile.GNUTYPE_LONGNAME, member.name),
                    target=long.get(tarfile.GNUTYPE_LONGLINK, member.target),
                )
                long.clear()
            yield member

    def _parse(self, block: bytes) -> "_Member":
        """Return what a header says; its checksum says nothing that the digests do not."""
        if block[257:262] != b"ustar":
            raise IntegrityError("is no tar file", where=self._where)
        name = block[:100].partition(b"\0")[0]
        kind = block[156:157]
        if block[257:263] == b"ustar\0" and block[345] and kind not in _LONG:
            name = block[345:500].partition(b"\0")[0] + b"/" + name
        mode, size = (block[start:end].rstrip(b" \0") for start, end in ((100, 108), (124, 136)))
        if not _OCTAL.match(mode) or not _OCTAL.match(size):
            raise self._refuse("too large, or its header is no header", name)
        return _Member(
            name=name,
            kind=kind,
            size=int(size, 8),
            executable=bool(int(mode, 8) & 0o100),
            target=block[157:257].partition(b"\0")[0],
        )

    def _make(self, member: "_Member") -> None:
        is_directory = member.kind == tarfile.DIRTYPE
        name = member.name.removesuffix(b"/") if is_directory else member.name
        check_path(name, where=self._where)
        top, _, inside = name.partition(b"/")
        self._top = self._top or top
        if top != self._top or not _ID.match(top):
            raise self._refuse("is not below the pack's one directory", name)
        parent = name.rpartition(b"/")[0]
        if parent not in self._made:
            raise self._refuse("comes before its directory, or goes through a link", name)
        self._childless.discard(parent)
        # Bytes and os, not pathlib: a pack has ten thousand of these.
        path = self._target + b"/" + name
        try:
            if is_directory and member.size == 0:
                os.mkdir(path)  # noqa: PTH102
                self._made.add(name)
                self._childless.add(name)
            elif member.kind == tarfile.SYMTYPE and member.size == 0:
                check_link(inside, member.target, where=self._where)
                os.symlink(member.target, path)  # noqa: PTH211
            elif member.kind == tarfile.REGTYPE:
                self._make_file(member, path)
            else:
                raise self._refuse("is no ordinary file, directory or symlink", name)
        except FileExistsError as error:
            raise self._refuse("is there twice", name) from error

    def _make_file(self, member: "_Member", path: bytes) -> None:
        kind = "executable" if member.executable else "file"
        left = member.size
        padding = -left % BLOCK
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        try:
            while left > CHUNK:
                _write_all(fd, self._read(CHUNK))
                left -= CHUNK
            _write_all(fd, memoryview(self._read(left + padding))[:left])
            os.fchmod(fd, MODES[kind])
        finally:
            os.close(fd)


def _write_all(fd: int, data: "bytes | memoryview") -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
