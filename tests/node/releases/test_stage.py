"""stage: from a tag to modules on the node, and the reasons to refuse one."""

import json
import os
import shutil

import pytest

from localpuppet.node.releases.git.mirrors import TREES_AT_ONCE
from tests.rigs.forge import Forge, klass, make, release
from tests.rigs.node import REPOSITORY, Node, shell


def test_a_release_is_fetched_verified_and_applied(site: Node, forge: Forge) -> None:
    site.run("stage", "--json", code=0)
    link = site.root / "modules/web/tags/r1"
    assert link.is_symlink()
    assert sorted(path.name for path in link.iterdir()) == [
        "manifest.lock",
        "manifest.yaml",
        "ntp",
        "web",
    ]
    done = site.run("apply", code=0)
    first = done.out.splitlines()[0]
    release_directory = link.readlink()
    collection = (site.root / "modules/dist/tags/r7").readlink()
    assert {release_directory.parent, collection.parent} == {
        site.state / "releases",
        site.state / "objects",
    }
    assert f"--modulepath {release_directory}:{collection}:" in first
    for text in ("web r1", "ntp v1", "dist r7"):
        assert f"Notice: {text}" in done.out
    site.run("release", "verify", "--all", code=0)
    assert "web/tags/r1" in site.run("release", "list").out


def test_staged_files_are_not_writable_by_others_with_any_umask(site: Node) -> None:
    before = os.umask(0)
    try:
        site.run("stage", code=0)
    finally:
        os.umask(before)
    places = [site.root / "modules", *(site.root / "modules").rglob("*")]
    for store in ("objects", "releases"):
        places += (site.state / store).glob("*/**/*")
    wide = [path for path in places if not path.is_symlink() and path.stat().st_mode & 0o022]
    assert wide == []
    site.run("release", "verify", code=0)
    site.run("check", code=0)


@pytest.mark.parametrize("way", ["modules", "modules/web", "modules/web/tags"])
def test_a_release_below_a_directory_that_others_can_write_is_refused(site: Node, way: str) -> None:
    site.run("stage", code=0)
    (site.root / way).chmod(0o777)
    for words in (["release", "verify"], ["check"], ["apply"]):
        done = site.run(*words)
        assert done.code == (3 if "verify" in words else 2), done.err
        assert f"{site.root / way}: is writable by others (mode 0777" in done.err


def test_stored_files_are_read_only_and_equal_those_in_git(site: Node, forge: Forge) -> None:
    web = forge.repo("web")
    web.write({".gitattributes": "* text eol=crlf ident\n", "files/a.txt": "$Id$\nx\n"})
    web.write({"files/run.sh": "#!/bin/sh\n"})
    (web.path / "files/run.sh").chmod(0o4755)
    web.commit({}, "r2")
    site.run("stage", "web/tags/r2", code=0)
    files = site.root / "modules/web/tags/r2/files"
    assert (files / "a.txt").read_bytes() == b"$Id$\nx\n"
    assert (files / "run.sh").stat().st_mode & 0o7777 == 0o555
    assert (files / "a.txt").stat().st_mode & 0o7777 == 0o444


def test_the_digest_can_be_recomputed_with_standard_tools(site: Node, forge: Forge) -> None:
    ntp = forge.repo("ntp")
    (ntp.path / "files").mkdir()
    (ntp.path / "files/tool").write_text("x")
    (ntp.path / "files/tool").chmod(0o755)
    (ntp.path / "alias.pp").symlink_to("manifests/init.pp")
    ntp.commit({"name with space": "y"}, "v2")
    release(site, forge, "r2", ntp="v2")
    site.run("stage", "web/tags/r2", code=0)
    recipe = (REPOSITORY / "docs/reference/tree-digest.md").read_text().partition("```sh\n")[2]
    tree = (site.root / "modules/web/tags/r2/ntp").resolve()
    printed = shell(f"cd {tree}\n{recipe.partition('```')[0]}")
    record = json.loads(next((site.state / "staged").glob("*r2.json")).read_text())
    assert printed.split()[0] == record["modules"]["ntp"] == tree.name


def test_a_run_reports_repairs(site: Node) -> None:
    site.run("apply", code=0)
    assert site.status()["repaired"] == ""
    victim = site.root / "modules/web/tags/r1/web/manifests/init.pp"
    victim.chmod(0o644)
    victim.write_text(klass("web", "edited"))
    done = site.run("apply", code=0)
    assert "Notice: web r1" in done.out
    changed = "was changed (names, sizes, times or modes)"
    assert "warning: web/tags/r1 was repaired: web/tags/r1" in done.err
    assert changed in done.err
    assert changed in site.status()["repaired"]
    assert changed in site.run("status").out
    rows = site.run("history").out.splitlines()
    assert [("repaired; " in row) for row in rows if "web/tags/r1" in row] == [True, False]


def test_stage_reports_repairs(site: Node) -> None:
    assert "repaired" not in site.run("stage").err
    (site.root / "modules/web/tags/r1").unlink()
    assert "does not point into the store" in site.run("stage").err
    assert "repaired" not in site.run("stage").err


def test_all_modules_are_staged_and_equal_ones_are_stored_once(node: Node, forge: Forge) -> None:
    """Of many modules, all but the last are equal."""
    count = TREES_AT_ONCE + 3
    web = forge.repo("web")
    node.settings(allow_file_urls=True, sources={"web": {"git": web.url}})
    forge.repo("m0").commit({"manifests/init.pp": klass("m", "same")}, "v1")
    for number in range(1, count):
        shutil.copytree(forge.path / "m0", forge.path / f"m{number}")
    forge.repo(f"m{count - 1}").commit({"manifests/init.pp": klass("m", "other")}, "v2")
    lines = [
        f"  m{number}: {{git: '{forge.repo(f'm{number}').url}', tag: {tag}}}\n"
        for number, tag in enumerate([*["v1"] * (count - 1), "v2"])
    ]
    web.write({"manifest.yaml": "modules:\n" + "".join(lines)})
    make(node, "lock", str(web.path), code=0)
    web.commit({}, "r1")
    staged = node.run("stage", "web/tags/r1", "--json", code=0)
    assert len(staged.json["modules"]) == count
    objects = list((node.state / "objects").iterdir())
    assert len(objects) == 3, "the equal module, the last one, and the release"
    assert not list((node.state / "staging").iterdir())
    assert not list((node.state / "mirrors").glob(".*"))
    node.run("release", "verify", "web/tags/r1", "--quick", code=0)
    node.run("release", "verify", "web/tags/r1", code=0)
