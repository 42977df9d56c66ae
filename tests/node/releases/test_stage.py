"""stage: from a tag to modules on the node, and the reasons to refuse one."""

import json
import os
import re
import shutil
import subprocess

import pytest

from tests.rigs.forge import Forge, klass, make, manifest, release
from tests.rigs.node import REPOSITORY, Node, shell


def test_a_release_is_fetched_verified_and_applied(site: Node, forge: Forge) -> None:
    staged = site.run("stage", "--json")
    assert staged.code == 0, staged.err
    link = site.root / "modules/web/tags/r1"
    assert link.is_symlink()
    assert sorted(path.name for path in link.iterdir()) == [
        "manifest.lock",
        "manifest.yaml",
        "ntp",
        "web",
    ]
    done = site.run("apply")
    assert done.code == 0, done.err
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
    assert site.run("release", "verify", "--all").code == 0
    assert "web/tags/r1" in site.run("release", "list").out


def test_staged_files_are_not_writable_by_others_with_any_umask(site: Node) -> None:
    before = os.umask(0)
    try:
        assert site.run("stage").code == 0
    finally:
        os.umask(before)
    places = [site.root / "modules", *(site.root / "modules").rglob("*")]
    for store in ("objects", "releases"):
        places += (site.state / store).glob("*/**/*")
    wide = [path for path in places if not path.is_symlink() and path.stat().st_mode & 0o022]
    assert wide == []
    assert site.run("release", "verify").code == 0
    assert site.run("check").code == 0


@pytest.mark.parametrize("way", ["modules", "modules/web", "modules/web/tags"])
def test_a_release_below_a_directory_that_others_can_write_is_refused(site: Node, way: str) -> None:
    assert site.run("stage").code == 0
    (site.root / way).chmod(0o777)
    for words in (["release", "verify"], ["check"], ["apply"]):
        done = site.run(*words)
        assert done.code == (3 if "verify" in words else 2), done.err
        assert f"{site.root / way}: is writable by others (mode 0777" in done.err


def test_a_release_whose_link_points_elsewhere_is_not_verified(site: Node) -> None:
    assert site.run("stage").code == 0
    link = site.root / "modules/web/tags/r1"
    target = link.readlink()
    link.unlink()
    link.symlink_to(target.parent / "other")
    done = site.run("release", "verify")
    assert done.code == 3
    assert f"{link} does not point into the store" in done.err


def test_a_staged_release_needs_no_git_host(site: Node, forge: Forge) -> None:
    assert site.run("stage").code == 0
    shutil.rmtree(forge.path)
    again = site.run("stage")
    assert again.code == 0, again.err
    assert site.run("check").code == 0
    other = site.run("stage", "web/tags/r2")
    assert other.code == 69
    assert "web" in other.err


def test_a_missing_tag_is_an_error_of_the_input(site: Node) -> None:
    missing = site.run("stage", "web/tags/r9")
    assert missing.code == 2
    assert "has no tag r9 (list its tags: git ls-remote --tags file://" in missing.err
    assert site.run("apply", str(site.write("other.yaml", "app: web/tags/r9\n"))).code == 2
    assert site.run("status", "--json").json["attempt"]["release"] == "web/tags/r9"


def test_two_releases_share_equal_trees(site: Node, forge: Forge) -> None:
    site.run("stage")
    before = {path.name for path in (site.state / "objects").iterdir()}
    release(site, forge, "r2")
    assert site.run("stage", "web/tags/r2").code == 0
    after = {path.name for path in (site.state / "objects").iterdir()}
    assert len(after - before) == 1, "only the tree of the app is new"


def test_a_moved_tag_is_an_alarm_and_the_staged_release_stays(site: Node, forge: Forge) -> None:
    site.run("stage")
    web = forge.repo("web")
    web.commit({"web/manifests/init.pp": klass("web", "evil")})
    web.git("tag", "-f", "-a", "-m", "r1", "r1")
    assert site.run("stage").code == 0, "a staged release is not compared with its tag"
    alarm = site.run("stage", "--refresh")
    assert alarm.code == 3
    assert "r1 has moved" in alarm.err
    assert "web r1" in (site.root / "modules/web/tags/r1/web/manifests/init.pp").read_text()
    assert site.run("release", "verify").code == 0
    assert site.run("stage", "--accept-moved").code == 0
    assert "evil" in (site.root / "modules/web/tags/r1/web/manifests/init.pp").read_text()


def test_a_moved_tag_of_a_dependency_is_an_alarm(site: Node, forge: Forge) -> None:
    ntp = forge.repo("ntp")
    ntp.commit({"manifests/init.pp": klass("ntp", "evil")})
    ntp.git("tag", "-f", "-a", "-m", "v1", "v1")
    alarm = site.run("stage")
    assert alarm.code == 3
    assert "manifest.lock: modules.ntp" in alarm.err
    assert not (site.root / "modules/web/tags/r1").exists()
    relock = make(site, "lock", str(forge.repo("web").path))
    assert relock.code == 3
    assert "has moved" in relock.err
    accepted = make(site, "lock", str(forge.repo("web").path), "--accept-moved")
    assert accepted.code == 0


def test_a_lock_must_match_its_manifest(site: Node, forge: Forge) -> None:
    web = forge.repo("web")
    forge.repo("ntp").commit({}, "v2")
    web.commit({"manifest.yaml": manifest(forge, ntp="v2")}, "r2")
    refused = site.run("stage", "web/tags/r2")
    assert refused.code == 2
    assert "modules.ntp: manifest and lock disagree" in refused.err
    (web.path / "manifest.lock").unlink()
    web.commit({}, "r3")
    refused = site.run("stage", "web/tags/r3")
    assert refused.code == 2
    assert "there is no manifest.lock" in refused.err


def test_bytes_that_differ_from_the_lock_are_refused(site: Node, forge: Forge) -> None:
    web = forge.repo("web")
    text = (web.path / "manifest.lock").read_text()
    changed = re.sub(r'(tree_sha256: ")[0-9a-f]{8}', r"\g<1>00000000", text)
    web.commit({"manifest.lock": changed}, "r2")
    refused = site.run("stage", "web/tags/r2")
    assert refused.code == 3
    assert "the lock says 00000000" in refused.err
    assert not (site.root / "modules/web/tags/r2").exists()


def test_an_edit_on_the_node_is_detected_and_repaired(site: Node, forge: Forge) -> None:
    site.run("stage")
    victim = (site.root / "modules/web/tags/r1/web/manifests/init.pp").resolve()
    victim.chmod(0o644)
    status = victim.stat()
    victim.write_text(klass("web", "w3b r1"))
    os.utime(victim, ns=(status.st_atime_ns, status.st_mtime_ns))
    victim.chmod(0o444)
    assert site.run("release", "verify", "--quick").code == 0, "metadata alone can be forged"
    found = site.run("release", "verify")
    assert found.code == 3
    assert "has the digest" in found.err
    os.utime(victim)
    assert site.run("release", "verify", "--quick").code == 3
    assert site.run("stage").code == 0
    assert site.run("release", "verify", "--all").code == 0
    assert len(list((site.state / "quarantine").iterdir())) == 1


def test_stored_files_are_read_only_and_equal_those_in_git(site: Node, forge: Forge) -> None:
    web = forge.repo("web")
    web.write({".gitattributes": "* text eol=crlf ident\n", "files/a.txt": "$Id$\nx\n"})
    web.write({"files/run.sh": "#!/bin/sh\n"})
    (web.path / "files/run.sh").chmod(0o4755)
    web.commit({}, "r2")
    assert site.run("stage", "web/tags/r2").code == 0
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
    assert site.run("stage", "web/tags/r2").code == 0
    recipe = (REPOSITORY / "docs/reference/tree-digest.md").read_text().partition("```sh\n")[2]
    tree = (site.root / "modules/web/tags/r2/ntp").resolve()
    printed = shell(f"cd {tree}\n{recipe.partition('```')[0]}")
    record = json.loads(next((site.state / "staged").glob("*r2.json")).read_text())
    assert printed.split()[0] == record["modules"]["ntp"] == tree.name


def test_only_one_process_stages(site: Node) -> None:
    site.run("stage")
    # Without a fork there is only one process to kill.
    holder = subprocess.Popen(["flock", "--no-fork", site.state / "stage.lock", "sleep", "600"])
    site.wait_until(lambda: site.run("stage").code == 75)
    holder.kill()
    holder.wait()
    assert site.run("stage").code == 0


def test_a_directory_in_the_way_is_not_overwritten(site: Node) -> None:
    mine = site.write("modules/web/tags/r1/precious", "mine")
    refused = site.run("stage")
    assert refused.code == 1
    assert "not a link into the store" in refused.err
    assert mine.read_text() == "mine"


def test_an_unknown_source_gets_a_suggestion(site: Node) -> None:
    refused = site.run("stage", "wbe/tags/r1")
    assert refused.code == 2
    assert "error: wbe/tags/r1: 'wbe' is not a source" in refused.err
    assert "did you mean 'web'?" in refused.err


def test_a_run_reports_repairs(site: Node) -> None:
    assert site.run("apply").code == 0
    assert site.status()["repaired"] == ""
    victim = site.root / "modules/web/tags/r1/web/manifests/init.pp"
    victim.chmod(0o644)
    victim.write_text(klass("web", "edited"))
    done = site.run("apply")
    assert done.code == 0, done.err
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
