"""gc removes releases that no rollback can need, and keeps those of active runs."""

import os
import time
from typing import Any

import pytest

from localpuppet.node.enc.assignment import AssignedRelease
from localpuppet.node.releases.git.mirrors import mirror_name
from localpuppet.node.releases.release_records import Ledger
from localpuppet.node.releases.staging import GarbageCollector, Removal
from tests.node import make
from tests.rigs.applied import AppliedReleases
from tests.rigs.forge import Forge, applied, klass, more_settings, point_at, release
from tests.rigs.node import Node
from tests.rigs.staged import DIST, R1, R2, ReleaseSite


def test_gc_keeps_the_configured_number_of_releases(sites: AppliedReleases) -> None:
    site = sites.restore(3)
    more_settings(site, keep={"releases": 2})
    applied(site, sites.forge, "r4")
    planned = site.run("release", "gc", "--dry-run", "--json").json
    assert planned["releases"] == ["web/tags/r1", "web/tags/r2"]
    assert sorted(planned["remaining"]) == ["web/tags/r3", "web/tags/r4"]
    listed = site.run("release", "list", "--json").json["releases"]
    assert [row["applied"] for row in listed] == [None, None, "previous", "current"]
    site.run("release", "gc", code=0)
    assert sorted(path.name for path in (site.root / "modules/web/tags").iterdir()) == ["r3", "r4"]
    assert (site.root / "modules/dist/tags/r7").exists()
    site.run("release", "verify", "--all", code=0)
    assert len(list((site.state / "objects").iterdir())) == 4, "ntp, dist, and two of web"
    site.run("apply", code=0)


def test_gc_keeps_the_last_good_release(sites: AppliedReleases) -> None:
    site, forge = sites.restore(1), sites.forge
    more_settings(site, keep={"runs": 1})
    web = forge.repo("web")
    for tag in ("r2", "r3"):
        release(site, forge, tag)
        web.commit({"web/manifests/init.pp": "class web { fail('broken') }\n"}, f"{tag}b")
        point_at(site, f"{tag}b")
        site.run("apply", code=1)
    done = site.run("release", "gc", "--json").json
    assert done["releases"] == ["web/tags/r2b"]
    assert done["remaining"] == ["web/tags/r1", "web/tags/r3b"]
    assert site.run("rollback", "--json").json["release"] == "web/tags/r1"
    assert "Notice: web r1" in site.run("apply").out


@pytest.mark.parametrize("reason", ["named", "good", "in_use", "applied", "rolled back"])
def test_gc_keeps_a_release_for_one_reason(web_site: ReleaseSite, reason: str) -> None:
    ledger, kept = Ledger(web_site.state), {"named": [R1], "good": [R1], "in_use": [(R1, [])]}
    if reason == "applied":
        ledger.note(R1)
    if reason == "rolled back":
        ledger.roll_back(make.rollback(R1))
    asked = {reason: lambda: kept[reason]} if reason in kept else {}
    collected = collect(web_site, ledger, keep_staged=-60, **asked)
    assert (collected.releases, collected.remaining) == ((R2,), (R1,))
    assert web_site.names() == [DIST, R1]


def test_gc_keeps_what_was_staged_ahead_and_never_applied(web_site: ReleaseSite) -> None:
    ledger = Ledger(web_site.state)
    assert collect(web_site, ledger, keep_staged=60).releases == ()
    for app in (R1, R2):
        ledger.note(app)
    assert collect(web_site, ledger, keep_staged=60).releases == (R1,)


def collect(site: ReleaseSite, ledger: Ledger, *, keep_staged: float, **asked: Any) -> Removal:
    """Stage r1 and r2, and collect garbage."""
    site.release(R2)
    for app in (R1, R2):
        site.staging().stage(app)
    nothing: dict[str, Any] = dict.fromkeys(("named", "good", "in_use"), list)
    collector = GarbageCollector(
        staging=site.staging(),
        ledger=ledger,
        forget=lambda _composition: None,
        urls=(),
        keep_staged=keep_staged,
        **{**nothing, **asked},
    )
    return collector.collect(now=time.time(), dry_run=False)


def test_gc_keeps_what_is_assigned_or_was_staged_a_moment_ago(site: Node, forge: Forge) -> None:
    release(site, forge, "r2")
    site.run("stage", "web/tags/r2", "--no-parse", code=0)
    os.utime(site.state / "staged" / "web%tags%r2.json", (time.time() - 10,) * 2)
    assert site.run("release", "gc", "--json").json["releases"] == []
    more_settings(site, gc={"keep_staged": "1s"})
    assert site.run("release", "gc", "--dry-run", "--json").json["releases"] == ["web/tags/r2"]
    AssignedRelease(site.state).keep(make.assignment("web/tags/r2", at="2026-11-20T14:03:12Z"))
    assert site.run("release", "gc", "--json").json["releases"] == []
    more_settings(site, gc={"keep_staged": "soon"})
    refused = site.run("release", "gc", code=2)
    assert "gc.keep_staged: 'soon' is an invalid time" in refused.err


def test_gc_is_refused_while_a_run_is_prepared(site: Node) -> None:
    """Before the run is recorded, no record names the release, nor does the input of the root."""
    site.run("stage", code=0)
    past = time.time() - 15 * 86400
    os.utime(site.state / "staged" / "web%tags%r1.json", (past, past))
    other = (site.root / "input.yaml").rename(site.root / "other.yaml")
    os.mkfifo(site.root / "fifo")
    enc = site.write("slow-enc", f"#!/bin/sh\ncat {site.root}/fifo\n", 0o755)
    more_settings(site, enc=str(enc), timeouts={"enc": 300})
    process = site.start("apply", str(other))
    with (site.root / "fifo").open("w") as answer:
        refused = site.run("release", "gc", code=75)
        assert "a run is being prepared" in refused.err
        assert site.run("release", "gc", "--dry-run", "--json").json["releases"] == ["web/tags/r1"]
        answer.write("classes: {}\n")
    site.finish(process, code=0)
    assert site.run("release", "gc", "--json").json["remaining"] == ["web/tags/r1"]


def test_gc_removes_old_archives_of_the_forge(node: Node) -> None:
    node.app("")
    place = node.state / "forge"
    place.mkdir(parents=True)
    for name, age in (("a" * 64 + ".tar.gz", 15), ("b" * 64 + ".part", 15), ("c" * 64, 13)):
        (place / name).write_bytes(b"x")
        os.utime(place / name, (time.time() - age * 86400,) * 2)
    planned = node.run("release", "gc", "--dry-run", "--json").json
    assert planned["archives"] == ["a" * 64 + ".tar.gz", "b" * 64 + ".part"]
    assert "0 trees, 2 archives; " in node.run("release", "gc").out
    assert [path.name for path in place.iterdir()] == ["c" * 64]


def test_gc_removes_mirrors_of_modules_and_keeps_those_of_sources(site: Node, forge: Forge) -> None:
    site.run("stage", code=0)
    mirrors = {name: mirror_name(forge.repo(name).url) for name in ("web", "dist", "ntp")}
    assert site.run("release", "gc", "--json").json["mirrors"] == [], (
        "the mirror was fetched recently"
    )
    past = time.time() - 15 * 86400
    for path in (site.state / "mirrors").rglob("*"):
        os.utime(path, (past, past), follow_symlinks=False)
    for name in mirrors.values():
        os.utime(site.state / "mirrors" / name, (past, past))
    assert site.run("release", "gc", "--json").json["mirrors"] == [mirrors["ntp"]]
    remaining = sorted(path.name for path in (site.state / "mirrors").iterdir())
    assert remaining == sorted([mirrors["web"], mirrors["dist"]])
    site.run("release", "verify", code=0)


def test_gc_keeps_the_release_of_a_run_after_its_tag_moved(site: Node, forge: Forge) -> None:
    """The run waits in its first resource. Puppet reads files of both trees only after that."""
    fifo = site.root / "fifo"
    os.mkfifo(fifo)
    forge.repo("dist").commit({"platform/files/motd": "genuine\n"}, "r8")
    release(site, forge, "r2", dist="r8")
    web = forge.repo("web")
    code = (
        f"class web {{ exec {{ '/bin/cat {fifo}': }}\n"
        f"-> file {{ '{site.root}/motd': source => 'puppet:///modules/platform/motd' }}\n"
        f"-> file {{ '{site.root}/own': source => 'puppet:///modules/web/own' }} }}\n"
    )
    web.commit({"web/manifests/init.pp": code, "web/files/own": "own\n"}, "r3")
    site.write("input.yaml", "app: web/tags/r3\nclasses: [web]\n")
    run = site.start("apply")
    with fifo.open("w") as waits_for_puppet:
        forge.repo("dist").commit({"platform/files/motd": "moved\n"}, "r9")
        release(site, forge, "r4", dist="r9")
        web.write({"web/manifests/init.pp": klass("web", "moved")})
        web.commit({})
        web.git("tag", "-f", "-a", "-m", "r3", "r3")
        site.run("stage", "web/tags/r3", "--accept-moved", "--no-parse", code=0)
        collected = site.run("release", "gc", "--json").json
        assert collected["compositions"] == []
        waits_for_puppet.write("go\n")
    site.finish(run, code=0)
    assert (site.root / "motd").read_text() == "genuine\n"
    assert (site.root / "own").read_text() == "own\n"
    over = site.run("release", "gc", "--json").json
    assert len(over["compositions"]) == 1, "the composition of the old tag, after the run has ended"
    assert over["trees"]
    assert len(list((site.state / "releases").iterdir())) == 1
    site.run("release", "verify", "--all", code=0)
    assert "Notice: moved" in site.run("apply").out
