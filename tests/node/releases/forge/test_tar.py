"""The reader of foreign archives refuses unsafe ones."""

import tarfile
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError
from localpuppet.node.releases.forge.forge_modules import unpack_module
from localpuppet.node.releases.forge.pins import ForgePin, Slug
from localpuppet.node.releases.limits import Budget
from localpuppet.node.releases.module_metadata import ModuleVersion


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.DIRTYPE])
def test_a_link_or_directory_with_content_hides_no_members(tmp_path: Path, kind: bytes) -> None:
    """Other programs skip the content; a reader that parses it as headers unpacks other code."""
    hidden = tarfile.TarInfo("m-1.0.0/manifests/hidden.pp")
    hidden.size = 5
    content = hidden.tobuf(tarfile.USTAR_FORMAT) + b"evil\n".ljust(512, b"\0")
    link = tarfile.TarInfo("m-1.0.0/link")
    link.type, link.linkname, link.size = kind, "x", len(content)
    metadata = tarfile.TarInfo("m-1.0.0/metadata.json")
    metadata.size = 2
    file = tmp_path / "m.tar"
    file.write_bytes(
        link.tobuf(tarfile.USTAR_FORMAT)
        + content
        + metadata.tobuf(tarfile.USTAR_FORMAT)
        + b"{}".ljust(512, b"\0")
        + bytes(1024)
    )
    target = tmp_path / "tree"
    target.mkdir()
    pin = ForgePin(
        forge=Slug.parse("acme/m", where=""),
        version=ModuleVersion.parse("1.0.0", where=""),
        archive_sha256="",
        tree_sha256="",
    )
    with pytest.raises(IntegrityError, match="not an ordinary file"):
        unpack_module(file, target, pin=pin, budget=Budget())
    assert not list(target.rglob("hidden.pp"))
