"""A node that gets its releases as packages: it needs no git and no source, and verifies all."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.rigs.forge import Forge, klass, licensed, make
from tests.rigs.node import Node
from tests.rigs.packages import Scratch, build, run, without_git


@pytest.mark.parametrize("form", ["deb", "rpm"])
def test_a_node_with_only_the_package_stages_it(
    site: Node, forge: Forge, bare: Node, scratch: Scratch, form: str
) -> None:
    scratch.install(build(site, form, site.root / "out"))
    shutil.rmtree(forge.path)
    path = without_git(bare)
    bare.run("stage", PATH=path, code=0)
    bare.run("check", PATH=path, code=0)
    bare.run("release", "verify", "--all", PATH=path, code=0)
    (top,) = scratch.packages.iterdir()
    staged_file = (bare.root / "modules/web/tags/r1/web/manifests/init.pp").resolve()
    packaged_file = next(top.glob("releases/*/web/manifests/init.pp")).resolve()
    assert staged_file.samefile(packaged_file), "a hard link, on one file system"
    record = json.loads(next((bare.state / "staged").iterdir()).read_text())
    assert record == json.loads(next((site.state / "staged").iterdir()).read_text())
    scratch.remove("localpuppet-release-web-r1", form)
    assert bare.run("stage", PATH=path).code == 0, "a staged release needs no package"


def wrapped(node: Node, scratch: Scratch) -> str:
    """Put a dpkg and an rpm on PATH that use only the scratch root."""
    dpkg, rpm = shutil.which("dpkg"), shutil.which("rpm")
    node.write("bin/dpkg", f'#!/bin/sh\nexec {dpkg} --root={scratch.path} "$@"\n', 0o755)
    node.write(
        "bin/rpm",
        # A query reads a file of this machine, but --root would search it in the other one.
        f'#!/bin/sh\ncase $1 in --query) exec {rpm} "$@" ;; esac\n'
        f'exec {rpm} --root={scratch.path} --dbpath=/rpmdb "$@"\n',
        0o755,
    )
    return without_git(node)


@pytest.mark.parametrize("form", ["deb", "rpm"])
def test_apply_installs_the_package(site: Node, bare: Node, scratch: Scratch, form: str) -> None:
    package = build(site, form, site.root / "out")
    path = wrapped(bare, scratch)
    done = bare.run("apply", "--install", str(package), "--noop", PATH=path, code=0)
    assert "web r1" in done.out
    bare.run("disable", "-m", "not now", PATH=path, code=0)
    again = bare.run("apply", "--install", str(package), "--noop", PATH=path)
    assert again.code == 75, "a second installation is accepted, but the hold prevents the run"


def test_other_packages_are_refused(
    site: Node, bare: Node, scratch: Scratch, tmp_path: Path
) -> None:
    path = wrapped(bare, scratch)
    (tmp_path / "evil/DEBIAN").mkdir(parents=True)
    (tmp_path / "evil/DEBIAN/control").write_text(
        "Package: evil\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n"
    )
    run("dpkg-deb", "--root-owner-group", "-b", tmp_path / "evil", tmp_path / "evil.deb")
    (tmp_path / "text.deb").write_text("hello")
    os.mkfifo(tmp_path / "fifo.deb")
    good = build(site, "deb", tmp_path / "out")
    open_to_all = shutil.copy(good, tmp_path / "open.deb")
    Path(open_to_all).chmod(0o666)
    cases = {
        "evil.deb": "not one of a release",
        "text.deb": "neither a .deb nor an .rpm",
        "fifo.deb": "is not a regular file",
        "open.deb": "is writable by others",
        "out": "is not a regular file",
        "--help": "file not found",
    }
    for name, problem in cases.items():
        argument = name if name.startswith("-") else str(tmp_path / name)
        done = bare.run("apply", f"--install={argument}", PATH=path)
        assert done.code == 2, (name, done.err)
        assert problem in done.err
    release_of_another = bare.run(
        "apply",
        "--install",
        str(good),
        str(bare.write("i.yaml", "app: web/tags/r2\n")),
        PATH=path,
        code=2,
    )
    assert "has no package or pack of it" in release_of_another.err


def test_a_package_that_was_changed_is_refused(site: Node, bare: Node, scratch: Scratch) -> None:
    package = build(site, "deb", site.root / "out")
    path = without_git(bare)
    scratch.install(package)
    (top,) = scratch.packages.iterdir()
    victim = next(top.glob("releases/*/ntp/manifests/init.pp")).resolve()
    victim.chmod(0o644)
    victim.write_text(klass("ntp", "evil"))
    done = bare.run("stage", PATH=path, code=3)
    assert "module ntp: has the digest" in done.err
    assert not (bare.root / "modules/web").exists()
    record = top / "release.json"
    text = record.read_text()
    record.chmod(0o644)
    record.write_text(text.replace('"time": 1', '"time": 2'))
    done = bare.run("stage", PATH=path, code=3)
    assert "its digest differs from its directory's name" in done.err
    scratch.install(package)
    bare.run("stage", PATH=path, code=0)
    shutil.rmtree(top / "objects")
    assert bare.run("stage", "--refresh", PATH=path).code == 0, "all files are staged already"
    shutil.rmtree(bare.state / "objects")
    done = bare.run("stage", PATH=path, code=3)
    assert "does not hold the tree" in done.err


def test_a_changed_file_of_a_package_is_detected(site: Node, bare: Node, scratch: Scratch) -> None:
    package = build(site, "deb", site.root / "out")
    path = without_git(bare)
    scratch.install(package)
    bare.run("stage", PATH=path, code=0)
    victim = (bare.root / "modules/web/tags/r1/web/manifests/init.pp").resolve()
    victim.chmod(0o644)
    victim.write_text(klass("web", "evil"))
    bare.run("release", "verify", PATH=path, code=3)
    assert bare.run("stage", PATH=path).code == 3, "the package has the same change"
    scratch.install(package)
    bare.run("stage", PATH=path, code=0)
    bare.run("release", "verify", PATH=path, code=0)


def test_another_file_system_gets_copies(site: Node, bare: Node, scratch: Scratch) -> None:
    scratch.install(build(site, "deb", site.root / "out"))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as state:
        bare.settings(allow_file_urls=True, packages=[str(scratch.packages)], state=state)
        bare.run("stage", PATH=without_git(bare), code=0)
        bare.run("release", "verify", "--all", code=0)
        file = (bare.root / "modules/web/tags/r1/web/manifests/init.pp").resolve()
        assert file.is_relative_to(state)
        assert file.stat().st_nlink == 1


def test_a_package_can_be_made_from_a_package(site: Node, bare: Node, scratch: Scratch) -> None:
    pack = build(site, "tar", site.root / "out")
    scratch.install(build(site, "deb", site.root / "out"))
    out = bare.root / "out"
    out.mkdir()
    bare.run("release", "package", "--format=tar", f"-o{out}", PATH=without_git(bare), code=0)
    assert (out / pack.name).read_bytes() == pack.read_bytes()


def test_a_changed_package_is_an_alarm(
    site: Node, forge: Forge, bare: Node, scratch: Scratch
) -> None:
    path = without_git(bare)
    scratch.install(build(site, "deb", site.root / "out"))
    bare.run("stage", PATH=path, code=0)
    web = forge.repo("web")
    web.commit({"web/manifests/init.pp": klass("web", "evil")})
    web.git("tag", "-f", "-a", "-m", "r1", "r1")
    site.run("stage", "--accept-moved", code=0)
    scratch.install(build(site, "deb", site.root / "out"))
    assert len(list(scratch.packages.iterdir())) == 1
    assert bare.run("stage", PATH=path).code == 0, (
        "a staged release is not compared with the package"
    )
    alarm = bare.run("stage", "--refresh", PATH=path, code=3)
    assert "is another r1" in alarm.err
    bare.run("stage", "--accept-moved", PATH=path, code=0)


def test_tags_only_refuses_a_pack_with_a_commit(site: Node, forge: Forge, bare: Node) -> None:
    web, ntp = forge.repo("web"), forge.repo("ntp")
    commit = ntp.git("rev-parse", "HEAD")
    module = f"{{git: '{ntp.url}', commit: {commit}}}"
    web.write({"manifest.yaml": f"modules:\n  ntp: {module}\n"})
    make(site, "lock", str(web.path), code=0)
    web.commit({}, "r2")
    pack = build(site, "tar", site.root / "out", "web/tags/r2")
    path = without_git(bare)
    bare.settings(allow_file_urls=True, tags_only=True)
    refused = bare.run("stage", "web/tags/r2", "--pack", str(pack), "--no-parse", PATH=path, code=2)
    assert "modules.ntp: is not a tag of a repository, and localpuppet.yaml says tags_only" in (
        refused.err
    )
    assert not (bare.root / "modules/web/tags/r2").exists()
    assert list((bare.state / "objects").iterdir()) == []
    bare.settings(allow_file_urls=True)
    bare.run("stage", "web/tags/r2", "--pack", str(pack), PATH=path, code=0)


def test_a_pack_is_staged_in_one_transfer(site: Node, forge: Forge, bare: Node) -> None:
    licensed(site, forge)
    pack = build(site, "tar", site.root / "out")
    shutil.rmtree(forge.path)
    path = without_git(bare)
    bare.run("stage", "--pack", str(pack), PATH=path, code=0)
    bare.run("release", "verify", "--all", PATH=path, code=0)
    assert list((bare.state / "staging").iterdir()) == []
    bare.run("stage", "--pack", str(pack), PATH=path, code=0)
    other = bare.run("stage", "web/tags/r2", "--pack", str(pack), PATH=path, code=2)
    assert "is a pack of 'web/tags/r1', not of web/tags/r2" in other.err
    # tar can unpack it into a directory of packages.
    unpacked = bare.root / "unpacked"
    unpacked.mkdir()
    run("tar", "-xzf", pack, "-C", unpacked)
    (top,) = unpacked.iterdir()
    run("sha256sum", "-c", "--quiet", "SHA256SUMS", cwd=top)
    bare.settings(allow_file_urls=True, packages=["unpacked"])
    shutil.rmtree(bare.state / "objects")
    bare.run("stage", PATH=path, code=0)
    shutil.rmtree(bare.state / "objects")


def test_a_directory_of_packs_is_a_source(site: Node, forge: Forge, bare: Node) -> None:
    licensed(site, forge)
    pack = build(site, "tar", bare.root / "packs")
    shutil.rmtree(forge.path)
    path = without_git(bare)
    bare.settings(allow_file_urls=True, packages=["packs"])
    (bare.root / "packs" / "localpuppet-release-web-r1-rc1-0a1b2c3d-1.tar.gz").write_bytes(b"")
    bare.run("stage", PATH=path, code=0)
    bare.run("release", "verify", "--all", PATH=path, code=0)
    assert "web r1" in bare.run("apply", PATH=path).out
    none = bare.run("stage", "web/tags/r9", PATH=path, code=2)
    assert "has no package or pack of it" in none.err
    shutil.copy(pack, pack.with_name(pack.name.replace("-1.tar", "-2.tar")))
    assert bare.run("stage", PATH=path).code == 0, "a verified release is not searched again"
    two = bare.run("stage", "--refresh", PATH=path, code=3)
    assert "are both packs of web/tags/r1" in two.err
