"""Transfers from a forge whose server or proxy is not trusted."""

import hashlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError, InvalidInputError, UnavailableError
from localpuppet.node.releases.forge.forge_modules import (
    DirectoryForge,
    Forge,
    MissingError,
    Transfer,
)
from tests.node import make
from tests.rigs.module_forge import ModuleForge, serve
from tests.rigs.tls import Authority

NTP = "acme-ntp-1.0.0.tar.gz"


@pytest.fixture
def modules() -> ModuleForge:
    forge = ModuleForge()
    forge.publish("acme/ntp", "1.0.0")
    return forge


@pytest.fixture
def url(modules: ModuleForge, tmp_path: Path) -> Iterator[str]:
    with serve(modules, Authority(tmp_path)) as url:
        yield url


def transfer(
    url: str, tmp_path: Path, token: str = "", total: float = 120, *, public: bool = False
) -> Transfer:
    ca = tmp_path / "ca.pem"
    return Transfer(url=url, ca=ca, proxy=None, token=token, timeout=60, total=total, public=public)


@pytest.mark.parametrize("place", ["https://127.0.0.1:99999", "https://[bad", "https://:1"])
def test_a_redirect_to_an_invalid_address_is_a_failure_of_the_forge(
    modules: ModuleForge, url: str, tmp_path: Path, place: str
) -> None:
    modules.elsewhere = place
    with pytest.raises(UnavailableError, match=r"cannot be downloaded|answered 302") as refused:
        transfer(url, tmp_path, "s3cret").file(f"{url}/v3/files/{NTP}", tmp_path / "part")
    assert "s3cret" not in str(refused.value)


def test_the_body_of_a_redirect_is_not_read(modules: ModuleForge, url: str, tmp_path: Path) -> None:
    modules.elsewhere, modules.said = f"{url}/nowhere", 64
    tracemalloc.start()
    try:
        with pytest.raises(MissingError):
            transfer(url, tmp_path).file(f"{url}/v3/files/{NTP}", tmp_path / "part")
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("port", ["99999", "port"])
def test_an_archive_at_an_invalid_address_is_refused(url: str, tmp_path: Path, port: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a URL"):
        transfer(url, tmp_path, "s3cret").file(f"https://127.0.0.1:{port}/x", tmp_path / "part")


def test_no_digest_means_no_resuming(modules: ModuleForge, url: str, tmp_path: Path) -> None:
    modules.silent = True
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    (cache / f".{NTP}.unknown.part").write_bytes(b"of another file")
    forge = Forge(transfer=transfer(url, tmp_path), cache=cache)
    ((_, archive, sha256),) = forge.archives([make.forge_pin()])
    assert archive.read_bytes() == modules.files[NTP]
    assert sha256 == hashlib.sha256(modules.files[NTP]).hexdigest()


def test_what_everybody_can_get_is_asked_of_the_forge_and_not_of_the_cache(
    modules: ModuleForge, url: str, tmp_path: Path
) -> None:
    cache, pinned = tmp_path / "cache", hashlib.sha256(modules.files[NTP]).hexdigest()
    pins = [make.forge_pin(archive_sha256=pinned)]
    own = Forge(transfer=transfer(url, tmp_path), cache=cache)
    assert [sha256 for _, _, sha256 in own.archives(pins)] == [pinned]
    asked = len(modules.asked)
    assert [sha256 for _, _, sha256 in own.archives(pins)] == [pinned]
    assert len(modules.asked) == asked
    public = Forge(transfer=transfer(url, tmp_path, public=True), cache=cache)
    with pytest.raises(UnavailableError, match="has an address that is not public"):
        list(public.archives(pins))
    assert len(modules.asked) == asked


def test_a_changing_archive_is_used_as_it_was_hashed(modules: ModuleForge, tmp_path: Path) -> None:
    modules.write(tmp_path / "mirror")
    file = tmp_path / "mirror" / NTP
    forge = DirectoryForge(tmp_path / "mirror", scratch=tmp_path / "forge")
    pinned = hashlib.sha256(modules.files[NTP]).hexdigest()
    pins = [make.forge_pin(archive_sha256=pinned)]
    for _, archive, sha256 in forge.archives(pins):
        file.write_bytes(b"something else")
        assert sha256 == pinned
        assert archive.read_bytes() == modules.files[NTP]
    assert list((tmp_path / "forge").iterdir()) == []
    with pytest.raises(IntegrityError, match="different bytes"):
        list(forge.archives(pins))
    assert list((tmp_path / "forge").iterdir()) == []


def test_a_transfer_byte_by_byte_times_out(modules: ModuleForge, url: str, tmp_path: Path) -> None:
    """The timeout of the socket restarts with each byte, so it alone would never end."""
    modules.slow = "body"
    with pytest.raises(UnavailableError, match=r"timed out after 0\.5 s"):
        transfer(url, tmp_path, total=0.5).file(f"{url}/v3/files/{NTP}", tmp_path / "part")
    with pytest.raises(UnavailableError, match=r"timed out after 0\.5 s"):
        transfer(url, tmp_path, total=0.5).document(f"{url}/v3/modules/acme-ntp")


def test_authorities_that_others_could_write_are_refused(url: str, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").chmod(0o666)
    with pytest.raises(InvalidInputError, match=r"ca\.pem"):
        transfer(url, tmp_path).document(f"{url}/v3/modules/acme-ntp")
