"""gc removes releases that no rollback can need, and keeps those of active runs."""

import json
import os
import time

from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.enc.assignment import AssignedRelease, Assignment
from localpuppet.node.releases.git.mirrors import mirror_name
from tests.rigs.applied import AppliedReleases
from tests.rigs.forge import Forge, applied, klass, more_settings, point_at, release
from tests.rigs.node import Node


def test_gc_keeps_the_configured_number_of_releases_and_removes_others(
    applied_releases: AppliedReleases,
) -> None:
    site = applied_releases.restore(3)
    more_settings(site, keep={"releases": 2})
    applied(site, applied_releases.forge, "r4")
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


def test_gc_keeps_the_last_good_release_after_any_number_of_failed_ones(
    applied_releases: AppliedReleases,
) -> None:
    site, forge = applied_releases.restore(1), applied_releases.forge
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


def test_gc_keeps_the_assigned_release_while_the_input_names_another(
    site: Node, forge: Forge
) -> None:
    release(site, forge, "r2")
    site.run("stage", "web/tags/r2", "--no-parse", code=0)
    os.utime(site.state / "staged" / "web%tags%r2.json", (0, 0))
    assert site.run("release", "gc", "--dry-run", "--json").json["releases"] == ["web/tags/r2"]
    assigned = Assignment(
        release=ReleasePath("web/tags/r2"),
        serial=1,
        by="choria=alice",
        at="2026-11-20T14:03:12.000000Z",
    )
    AssignedRelease(site.state).keep(assigned)
    assert site.run("release", "gc", "--json").json["releases"] == []


def test_gc_keeps_a_release_that_was_staged_ahead_for_some_time(site: Node, forge: Forge) -> None:
    for tag in ("r2", "r3"):
        release(site, forge, tag)
        site.run("stage", f"web/tags/{tag}", "--no-parse", code=0)
    os.utime(site.state / "staged" / "web%tags%r2.json", (time.time() - 15 * 86400,) * 2)
    assert site.run("release", "gc", "--json").json["releases"] == ["web/tags/r2"]
    more_settings(site, gc={"keep_staged": "1s"})
    os.utime(site.state / "staged" / "web%tags%r3.json", (time.time() - 10,) * 2)
    assert site.run("release", "gc", "--json").json["releases"] == ["web/tags/r3"]
    more_settings(site, gc={"keep_staged": "soon"})
    refused = site.run("release", "gc", code=2)
    assert "gc.keep_staged: 'soon' is an invalid time" in refused.err


def test_gc_keeps_the_release_of_an_active_run(site: Node, forge: Forge) -> None:
    web = forge.repo("web")
    slow = f"class web {{ {site.gate_code()} -> notify {{ 'end': }} }}\n"
    web.commit({"web/manifests/init.pp": slow}, "slow")
    other = site.write("other.yaml", "app: web/tags/slow\nclasses: [web]\n")
    process = site.start("apply", "--noop", str(other), "--", "--debug")
    site.wait_until(lambda: site.recorded().get("state") == "running")
    process.terminate()
    site.finish(process)
    process = site.start("apply", str(other))
    site.wait_until(lambda: site.recorded().get("state") == "running")
    kept = site.run("release", "gc", "--json").json
    assert "web/tags/slow" in kept["remaining"]
    site.open_gate()
    site.finish(process, code=0)
    status = json.loads(site.run("status", "--json").out)
    assert status["run"]["outcome"] == "changed"


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


def test_gc_keeps_the_release_of_an_active_run_after_its_tag_moved(
    site: Node, forge: Forge
) -> None:
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
