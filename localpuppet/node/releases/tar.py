"""Unpacks tar files that may be hostile: release packs, archives of the Forge.

This is not tarfile's reader: it accepts the few kinds of members that callers need, and refuses the
others before it creates anything on disk. It does not check the digest of the file.

Invariants: unpacked files are below the target, and reached only through directories that this call
has created; memory does not depend on the file.
"""

import gzip
import os
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from localpuppet.base.errors import IntegrityError
from localpuppet.base.machine.files import disk_errors, open_user_file
from localpuppet.base.value import Value
from localpuppet.node.releases.limits import LIMITS, MAX_PAX, MAX_TAR_NAME, Budget, Limits
from localpuppet.node.releases.store import CHUNK, check_link, check_path

BLOCK = 512
MODES = {"directory": 0o755, "executable": 0o555, "file": 0o444}
_OCTAL = re.compile(rb"[0-7]{1,11}\Z")
_END = bytes(BLOCK)
# The number of slashes in the name of a tree in a pack: ID/objects/SHA256.
_TREE = 2
_LONG = {tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
SYMLINK = tarfile.SYMTYPE
_PAX = {tarfile.XHDTYPE, tarfile.XGLTYPE}
_PAX_RECORD = re.compile(rb"(\d{1,10}) ([^=]+)=")


class TarRules(Value):
    """The allowed form of a tar file.

    If other programs write it (`foreign`), directories need no members, names may start with `./`,
    extended headers (pax) are read, and symlinks are left out, as r10k leaves them out.
    """

    top: re.Pattern[bytes]
    hint: str
    foreign: bool = False


def unpack(
    file: Path,
    target: Path,
    *,
    rules: TarRules,
    limits: Limits = LIMITS,
    budget: Budget | None = None,
) -> Path:
    """Unpack a tar file, compressed by gzip or plain, into an empty directory.

    Return the directory below it that has the one name at the top. The file shares the limits of
    `budget` with others.
    """
    where = str(file)
    with open_user_file(file, limit=limits.file) as raw:
        start = raw.read(2)
        raw.seek(0)
        # A plain tar is accepted, too: it may have been decompressed on the way.
        packed = start == b"\x1f\x8b"
        stream: _Stream = gzip.GzipFile(fileobj=raw) if packed else raw
        budgets = [Budget(limits)] if budget is None else [Budget(limits), budget]
        with disk_errors(target):
            try:
                return _Unpacking(stream, os.fsencode(target), where, rules, budgets).run()
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise IntegrityError(f"is damaged: {error}", where=where) from error


class _Member(Value):
    name: bytes
    kind: bytes
    size: int
    executable: bool
    target: bytes


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(slots=True, eq=False)
class _Unpacking:
    """The state of unpacking one file; `budgets` are its own limits and those that it shares."""

    _stream: _Stream
    _target: bytes
    _where: str
    _rules: TarRules
    _budgets: Sequence[Budget]
    _top: bytes = b""
    _made: set[bytes] = field(default_factory=lambda: {b""})
    _childless: set[bytes] = field(default_factory=set)

    def run(self) -> Path:
        for member in self._members():
            self._make(member)
        if not self._top:
            raise IntegrityError("is empty", where=self._where)
        # A tree knows files and links only: no digest covers an empty directory.
        empty = min((name for name in self._childless if name.count(b"/") > _TREE), default=None)
        if empty is not None:
            raise self._refuse("is an empty directory", empty)
        return Path(os.fsdecode(self._target + b"/" + self._top))

    def _refuse(self, what: str, name: bytes) -> IntegrityError:
        shown = name.decode("utf-8", "backslashreplace")[:120]
        return IntegrityError(what, where=f"{self._where}: {shown!r}", hint=self._rules.hint)

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) != size:
            raise EOFError("it is truncated")
        return data

    def _members(self) -> Iterator["_Member"]:
        """Yield each member; its content is next in the stream."""
        long: dict[bytes, bytes] = {}
        pax: dict[bytes, bytes] = {}
        while True:
            block = self._read(BLOCK)
            if block == _END:
                return
            member = self._parse(block)
            self._count(member)
            if member.kind in _LONG:
                if member.size > MAX_TAR_NAME or member.kind in long:
                    raise self._refuse("a name is too long", member.name)
                data = self._read(-(-member.size // BLOCK) * BLOCK)[: member.size]
                long[member.kind] = data.rstrip(b"\0")
                continue
            if self._rules.foreign and member.kind in _PAX:
                extended = self._extended(member)
                if member.kind == tarfile.XHDTYPE:
                    pax = extended
                elif self._overruled(member, extended) is not member:
                    raise self._refuse("a header for all members names one", member.name)
                continue
            if pax:
                member = self._overruled(member, pax)
                pax = {}
            if long:
                member = replace(
                    member,
                    name=long.get(tarfile.GNUTYPE_LONGNAME, member.name),
                    target=long.get(tarfile.GNUTYPE_LONGLINK, member.target),
                )
                long.clear()
            yield member

    def _count(self, member: "_Member") -> None:
        for budget in self._budgets:
            try:
                budget.take(member.size, where=self._where)
            except IntegrityError as error:
                raise self._refuse(error.what, member.name) from error

    def _extended(self, member: "_Member") -> dict[bytes, bytes]:
        """Return the records `LENGTH NAME=VALUE` of an extended header."""
        if member.size > MAX_PAX:
            raise self._refuse("an extended header is too long", member.name)
        data = self._read(-(-member.size // BLOCK) * BLOCK)[: member.size]
        records = {}
        position = 0
        while position < len(data):
            match = _PAX_RECORD.match(data, position)
            length = int(match[1]) if match else 0
            if match is None or not match.end() - position < length <= len(data) - position:
                raise self._refuse("an extended header cannot be read", member.name)
            records[match[2]] = data[match.end() : position + length - 1]
            position += length
        return records

    def _overruled(self, member: "_Member", pax: dict[bytes, bytes]) -> "_Member":
        if b"size" in pax or any(key.startswith(b"GNU.sparse.") for key in pax):
            raise self._refuse("too large, or sparse", member.name)
        if pax.keys().isdisjoint((b"path", b"linkpath")):
            return member
        name, target = pax.get(b"path", member.name), pax.get(b"linkpath", member.target)
        if max(len(name), len(target)) > MAX_TAR_NAME:
            raise self._refuse("a name is too long", member.name)
        return replace(member, name=name, target=target)

    def _parse(self, block: bytes) -> "_Member":
        """Return the member of a header. Its checksum is ignored: digests cover more."""
        if block[257:262] != b"ustar":
            raise IntegrityError("is not a tar file", where=self._where)
        name = block[:100].partition(b"\0")[0]
        kind = block[156:157]
        if block[257:263] == b"ustar\0" and block[345] and kind not in _LONG:
            name = block[345:500].partition(b"\0")[0] + b"/" + name
        mode, size = (block[start:end].rstrip(b" \0") for start, end in ((100, 108), (124, 136)))
        if not _OCTAL.match(mode) or not _OCTAL.match(size):
            raise self._refuse("too large, or its header is not a header", name)
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
        if self._rules.foreign:
            name = name.removeprefix(b"./")
        if is_directory or member.kind == SYMLINK:
            if member.size:  # it would be read as headers
                raise self._refuse("is not an ordinary file, directory or symlink", name)
            if self._rules.foreign:
                # Directories are created for their files: a tree has no empty ones.
                return
        inside = self._enter(name)
        # Bytes and os, not pathlib: a pack has ten thousand of these.
        path = self._target + b"/" + name
        try:
            if is_directory:
                os.mkdir(path)  # noqa: PTH102
                self._made.add(name)
                self._childless.add(name)
            elif member.kind == SYMLINK:
                check_link(inside, member.target, where=self._where)
                os.symlink(member.target, path)  # noqa: PTH211
            elif member.kind == tarfile.REGTYPE or (
                self._rules.foreign and member.kind == tarfile.AREGTYPE
            ):
                self._make_file(member, path)
            else:
                raise self._refuse("is not an ordinary file, directory or symlink", name)
        except FileExistsError as error:
            raise self._refuse("occurs twice", name) from error

    def _enter(self, name: bytes) -> bytes:
        """Check a member's name by the rules, and ensure that its directory exists.

        Return its path below the one name at the top.
        """
        check_path(name, where=self._where)
        top, _, inside = name.partition(b"/")
        self._top = self._top or top
        if top != self._top or not self._rules.top.match(top):
            raise self._refuse("is not below the file's one directory", name)
        parent = name.rpartition(b"/")[0]
        if parent not in self._made:
            if not self._rules.foreign:
                raise self._refuse("comes before its directory, or goes through a link", name)
            self._make_parents(name)
        self._childless.discard(parent)
        return inside

    def _make_parents(self, name: bytes) -> None:
        """Create the directories of a member that have no members of their own."""
        parts = name.split(b"/")[:-1]
        for count in range(1, len(parts) + 1):
            directory = b"/".join(parts[:count])
            if directory in self._made:
                continue
            try:
                os.mkdir(self._target + b"/" + directory)  # noqa: PTH102
            except FileExistsError as error:
                raise self._refuse("occurs twice", directory) from error
            self._made.add(directory)

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
