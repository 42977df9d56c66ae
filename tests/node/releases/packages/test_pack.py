"""Foreign release packs: hostile content must never reach the disk."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError, InvalidInputError, LocalpuppetError
from localpuppet.node.releases.limits import LIMITS, Limits
from localpuppet.node.releases.packages import tools as packs
from tests.rigs.forge import Forge
from tests.rigs.node import Node
from tests.rigs.packages import build

ID = "a" * 64


def member(name: str, data: bytes = b"", **more: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in more.items():
        setattr(info, key, value)
    return info, data


def directory(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.DIRTYPE)


def pack(
    path: Path, *members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT
) -> Path:
    with tarfile.open(path, "w:gz", format=form) as tar:
        for info, data in [directory(ID), *members]:
            tar.addfile(info, io.BytesIO(data))
    return path


HOSTILE = {
    "absolute": [member("/tmp/evil", b"x")],
    "climbs": [member(f"{ID}/../evil", b"x")],
    "climbs at once": [member("../evil", b"x")],
    "beside": [member("evil", b"x")],
    "another top": [directory("b" * 64)],
    "dot": [member(f"{ID}/./evil", b"x")],
    "empty component": [member(f"{ID}//evil", b"x")],
    "absolute link": [member(f"{ID}/x", type=tarfile.SYMTYPE, linkname="/etc")],
    "link out": [member(f"{ID}/x", type=tarfile.SYMTYPE, linkname="../../etc")],
    "through a link": [
        directory(f"{ID}/d"),
        member(f"{ID}/x", type=tarfile.SYMTYPE, linkname="d"),
        member(f"{ID}/x/evil", b"x"),
    ],
    "over a link": [member(f"{ID}/x", type=tarfile.SYMTYPE, linkname="y"), member(f"{ID}/x", b"x")],
    "twice": [member(f"{ID}/x", b"x"), member(f"{ID}/x", b"y")],
    "hard link": [member(f"{ID}/x", type=tarfile.LNKTYPE, linkname="/etc/passwd")],
    "character device": [member(f"{ID}/x", type=tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "block device": [member(f"{ID}/x", type=tarfile.BLKTYPE, devmajor=8, devminor=0)],
    "fifo": [member(f"{ID}/x", type=tarfile.FIFOTYPE)],
    "sparse": [member(f"{ID}/x", type=tarfile.GNUTYPE_SPARSE)],
    "control character": [member(f"{ID}/x\x1b[2J", b"x")],
    "git": [directory(f"{ID}/.git")],
    "no directory": [member(f"{ID}/d/x", b"x")],
    "long name": [member(f"{ID}/" + "d/" * 3000 + "x", b"x")],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_members_are_refused(tmp_path: Path, case: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    file = pack(tmp_path / "evil.tar.gz", *HOSTILE[case])
    with pytest.raises(IntegrityError):
        packs.unpack(file, target)
    assert {path.name for path in tmp_path.iterdir()} == {"evil.tar.gz", "target"}
    assert not Path("/tmp/evil").exists()
    for path in target.rglob("*"):
        assert path.is_dir() or path.is_file() or str(path.readlink()) in ("d", "y")


def test_pax_headers_are_refused(tmp_path: Path) -> None:
    file = pack(
        tmp_path / "pax.tar.gz",
        member(f"{ID}/x", pax_headers={"path": "/etc/evil"}),
        form=tarfile.PAX_FORMAT,
    )
    (tmp_path / "target").mkdir()
    with pytest.raises(IntegrityError):
        packs.unpack(file, tmp_path / "target")


def claim(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


BOMBS: dict[str, tuple[Callable[[], bytes], Limits]] = {
    "a huge file": (lambda: claim(f"{ID}/x", 10**12), LIMITS),
    "a huge name": (lambda: claim("x", 10**9, tarfile.GNUTYPE_LONGNAME), LIMITS),
    "a negative size": (lambda: claim(f"{ID}/x", -512), LIMITS),
    "many files of little": (
        lambda: b"".join(claim(f"{ID}/{n}", 0) for n in range(50)),
        Limits(members=20),
    ),
    "many files of much": (
        lambda: b"".join(claim(f"{ID}/{n}", 512) + bytes(512) for n in range(50)),
        Limits(unpacked=10_000),
    ),
}


@pytest.mark.parametrize("case", BOMBS)
def test_bombs_are_refused(tmp_path: Path, case: str) -> None:
    make, limits = BOMBS[case]
    file = tmp_path / "bomb.tar.gz"
    file.write_bytes(gzip.compress(claim(ID, 0, tarfile.DIRTYPE) + make() + bytes(1024)))
    (tmp_path / "target").mkdir()
    with pytest.raises(IntegrityError, match=r"too (large|many|long)|name is too long"):
        packs.unpack(file, tmp_path / "target", limits=limits)


def test_a_file_that_is_not_a_pack_is_refused(tmp_path: Path) -> None:
    good = pack(tmp_path / "good.tar.gz", member(f"{ID}/x", os.urandom(5000))).read_bytes()
    broken = {
        "text": b"hello\n" * 200,
        "empty": b"",
        "nothing in it": bytes(1024),
        "cut": good[: len(good) // 2],
        "cut in the header of gzip": good[:5],
        "cut tar": gzip.decompress(good)[:1100],
        "damaged": good[:3000] + b"\xff" * 100 + good[3100:],
    }
    for name, data in broken.items():
        file = tmp_path / "broken"
        file.write_bytes(data)
        target = tmp_path / name
        target.mkdir()
        with pytest.raises(LocalpuppetError) as caught:
            packs.unpack(file, target)
            raise AssertionError(f"{name} was accepted")
        assert caught.value.exit_code == 3, name
    for file in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InvalidInputError):
            packs.unpack(file, tmp_path / "target")
    with pytest.raises(InvalidInputError, match="too large"):
        packs.unpack(tmp_path / "good.tar.gz", tmp_path, limits=Limits(file=100))


Change = Callable[[str, bytes], bytes]


def contents(file: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(file) as tar:
        for info in tar:
            content = tar.extractfile(info) if info.isfile() else None
            yield info, content.read() if content else b""


def changed(good: Path, file: Path, change: Change, top: str = ID) -> None:
    """Write a pack like `good` with changed contents and the given top directory."""
    with tarfile.open(file, "w:gz", format=tarfile.GNU_FORMAT) as tar:
        for info, old in contents(good):
            data = change(info.name, old)
            info.size = len(data)
            info.name = top + info.name[64:]
            tar.addfile(info, io.BytesIO(data))


@dataclass
class Victim:
    node: Node
    good: Path

    def refusal(self, change: Change, top: str) -> str:
        file = self.node.root / "changed.tar.gz"
        changed(self.good, file, change, top)
        done = self.node.run("stage", "web/tags/r1", "--pack", str(file))
        assert done.code == 3, (done.out, done.err)
        assert not (self.node.root / "modules/web").exists()
        assert not list((self.node.state / "staging").iterdir())
        assert not list((self.node.state / "objects").iterdir()), "nothing is left for gc"
        assert f"{file}: " in done.err
        assert "staging/" not in done.err
        return done.err

    def forged(self, **changes: object) -> str:
        """Return the refusal of a false record whose name has the matching digest."""
        record = next(data for info, data in contents(self.good) if "release.json" in info.name)
        lie = json.dumps({**json.loads(record), **changes}).encode()
        return self.refusal(
            lambda name, data: lie if "release.json" in name else data,
            hashlib.sha256(lie).hexdigest(),
        )


@pytest.fixture
def victim(site: Node, forge: Forge, tmp_path: Path) -> Victim:
    good = build(site, "tar", tmp_path / "out")
    node = Node(tmp_path / "node")
    (node.root / "modules").mkdir(parents=True)
    node.settings(allow_file_urls=True)
    return Victim(node, good)


def test_a_pack_with_changed_bytes_is_refused_and_activates_no_release(victim: Victim) -> None:
    with tarfile.open(victim.good) as tar:
        top = tar.getnames()[0]
    message = victim.refusal(lambda _, data: data.replace(b"ntp v1", b"evil!!"), top)
    assert "module ntp: has the digest" in message
    message = victim.refusal(lambda _, data: data.replace(b'"time"', b'"time" '), top)
    assert "differs from its directory's name" in message
    victim.node.run("stage", "web/tags/r1", "--pack", str(victim.good), code=0)


def test_a_false_record_is_refused(victim: Victim) -> None:
    assert "name different trees" in victim.forged(modules={})
    assert "name different trees" in victim.forged(composition="0" * 64)
    assert "is an invalid digest" in victim.forged(modules={"ntp": "../../../../etc"})
    assert "must be a string" in victim.forged(modules={"ntp": 5})
    assert "traversal" in victim.forged(sources={"../../etc": "0" * 64})
    assert "unknown key" in victim.forged(more=1)
    assert "schema 2" in victim.forged(schema=2)
