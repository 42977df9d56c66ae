"""Packages: two builds are equal, and the real tools install and remove them."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.rigs.forge import Forge, klass, licensed, release
from tests.rigs.node import Node
from tests.rigs.packages import Scratch, build, run

SUFFIXES = {"deb": ".deb", "rpm": ".rpm", "tar": ".tar.gz"}


@pytest.mark.parametrize("form", ["deb", "rpm", "tar"])
def test_two_builds_have_equal_bytes(site: Node, forge: Forge, tmp_path: Path, form: str) -> None:
    licensed(site, forge)
    first = build(site, form, tmp_path / "one")
    assert first.name.startswith("localpuppet-release-web-r1")
    assert first.name.endswith(SUFFIXES[form])
    # The second build has another state, file system, time zone, umask and home.
    other = Node(tmp_path / "other/root-of-another-name")
    other.root.mkdir(parents=True)
    shutil.copy(site.root / "localpuppet.yaml", other.root)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o2775)
    home = elsewhere / "home"
    home.mkdir()
    (home / ".rpmmacros").write_text("%_binary_payload w1.bzdio\n%packager Me\n")
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else elsewhere
    old = os.umask(0o077)
    try:
        with tempfile.TemporaryDirectory(dir=memory) as scratch:
            done = other.run(
                *("release", "package", "web/tags/r1", "--format", form, "-o", str(home)),
                TMPDIR=scratch,
                HOME=str(home),
                TZ="Asia/Tokyo",
                LANG="tr_TR.UTF-8",
                SOURCE_DATE_EPOCH="1",
            )
    finally:
        os.umask(old)
    assert done.code == 0, done.err
    second = home / first.name
    assert second.read_bytes() == first.read_bytes()
    assert second.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("form", ["deb", "rpm"])
def test_a_package_is_installed_and_removed_and_activates_no_release(
    site: Node, forge: Forge, scratch: Scratch, form: str
) -> None:
    licensed(site, forge)
    package = build(site, form, site.root / "out")
    modules = scratch.path / "etc/puppet/modules"
    modules.mkdir(parents=True)
    scratch.install(package)
    scratch.install(package)
    files = scratch.files()
    (top,) = scratch.packages.iterdir()
    names = {path.name for path in top.iterdir()}
    assert names == {"release.json", "SHA256SUMS", "objects", "releases"}
    for name, status in files.items():
        assert (status.st_uid, status.st_gid) == (0, 0), name
        if not (scratch.path / name).is_symlink():
            wanted = 0o555 if name.endswith("run.sh") else 0o444
            assert status.st_mode & 0o7777 == wanted, name
    for directory in (scratch.path / "usr").rglob("*"):
        if directory.is_dir() and not directory.is_symlink():
            assert directory.stat().st_mode & 0o7777 == 0o755
    run("sha256sum", "-c", "--quiet", "SHA256SUMS", cwd=top)
    (composed,) = (top / "releases").iterdir()
    assert (composed / "ntp/manifests/init.pp").read_text() == klass("ntp", "ntp v1")
    assert (composed / "manifest.lock").is_file()
    assert os.readlink(composed / "web/files/link") == "./run.sh"  # noqa: PTH115 - to the byte
    doc = scratch.path / "usr/share/doc/localpuppet-release-web-r1"
    assert (doc / "licenses/web/tags/r1/LICENSE").read_text() == "be nice\n"
    assert (doc / "licenses/web/tags/r1/web/NOTICE.txt").exists()
    assert "dist/tags/r7: no licence files" in (doc / "copyright").read_text()
    assert list(modules.iterdir()) == []
    if form == "deb":
        assert run("dpkg-deb", "--ctrl-tarfile", package).count("postinst") == 0
        assert set(run("dpkg-deb", "-I", package).split()) & {"Depends:", "Pre-Depends:"} == set()
    else:
        assert run("rpm", "-qp", "--nosignature", "--scripts", package) == ""
        requires = run("rpm", "-qp", "--nosignature", "--requires", package).splitlines()
        assert all(line.startswith("rpmlib(") for line in requires), requires
    scratch.remove("localpuppet-release-web-r1", form)
    assert scratch.files() == {}


def test_rpmbuild_expands_no_macro_in_a_temporary_directory(site: Node, tmp_path: Path) -> None:
    hostile = tmp_path / "%(true)"
    hostile.mkdir()
    done = site.run(
        *("release", "package", "web/tags/r1", "--format", "rpm", "-o", str(tmp_path)),
        TMPDIR=str(hostile),
    )
    assert (done.code, "TMPDIR: the path has a '%'" in done.err) == (2, True)


@pytest.mark.parametrize("form", ["deb", "rpm"])
def test_releases_are_installed_together(
    site: Node, forge: Forge, scratch: Scratch, form: str
) -> None:
    scratch.install(build(site, form, site.root / "out"))
    web = forge.repo("web")
    web.git("tag", "-a", "-m", "the same commit", "r1.1")
    release(site, forge, "r2")
    for tag in ("r1.1", "r2"):
        scratch.install(build(site, form, site.root / "out", f"web/tags/{tag}"))
    assert len(list(scratch.packages.iterdir())) == 3


def test_a_version_and_a_directory_are_checked(site: Node, tmp_path: Path) -> None:
    package = build(site, "deb", tmp_path / "out", "--version", "7~rc1")
    assert package.name == "localpuppet-release-web-r1_7~rc1_all.deb"
    assert run("dpkg-deb", "-f", package, "Version").strip() == "7~rc1"
    for wrong in ("", "r1", "1:2", "1-2", "1\nDepends: evil", "1%(id)"):
        done = site.run("release", "package", "--format", "tar", "--version", wrong, code=2)
    done = site.run(
        "release", "package", "--format", "tar", "-o", str(tmp_path / "nowhere"), code=2
    )
    assert "is not a directory" in done.err
