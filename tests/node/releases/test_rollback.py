"""Switching to a release, and rolling back."""

import os
import re

from localpuppet.base.machine.files import remove_tree
from tests.rigs.applied import AppliedReleases
from tests.rigs.forge import Forge, applied, more_settings, point_at, release
from tests.rigs.node import Node
from tests.rigs.signing import TAGGED_AT, payload, put_tag


def test_check_stages_no_release(site: Node) -> None:
    refused = site.run("check", code=2)
    assert f"{site.root}/input.yaml: web/tags/r1: does not exist: there is no dir" in refused.err
    assert "('localpuppet stage' fetches it)" in refused.err
    assert not (site.state / "objects").exists()
    site.write("input.yaml", "app: control/tags/r1\n")
    refused = site.run("check")
    assert "no source 'control' is configured (declare it in localpuppet.yaml: " in refused.err
    site.write("input.yaml", "app: control/tags\n")
    assert "(did you mean" not in site.run("check").err
    for words in (["stage", "r2"], ["release", "diff", "r2", "web/tags/r2"]):
        assert "error: r2: does not exist: there is no directory" in site.run(*words).err
    for app, near in (
        ("wbe/tags/r1", "web"),
        ("r1", "SOURCE/tags/r1' or 'SOURCE/branches/r1"),
        ("web/r1", "web/tags/r1' or 'web/branches/r1"),
        ("web/tag/r1", "web/tags/r1' or 'web/branches/r1"),
    ):
        site.write("input.yaml", f"app: {app}\n")
        assert f"(did you mean '{near}'?)" in site.run("check").err
    site.write("input.yaml", "app: www/r1\n")
    assert "(name a release: SOURCE/tags/TAG, or" in site.run("check").err


def test_a_rollback_applies_the_release_and_the_node_document_of_the_earlier_run(
    applied_releases: AppliedReleases,
) -> None:
    site = applied_releases.restore(1)
    release(site, applied_releases.forge, "r2")
    site.write("input.yaml", "app: web/tags/r2\nclasses: [web]\n")
    assert "Notice: web r2" in site.run("apply").out
    rolled = site.run("rollback", code=0)
    assert "from web/tags/r2 to web/tags/r1" in rolled.out
    for _ in range(2):  # the rollback stays: a timer must not end it
        done = site.run("apply", code=0)
        assert "Notice: web r1" in done.out
        assert "Notice: platform" not in done.out
        assert "Notice: dist r7" in done.out, "with all three classes of the earlier run"
        assert "rolled back to web/tags/r1" in done.err


def test_a_rollback_can_name_its_release_and_can_be_ended(
    applied_releases: AppliedReleases,
) -> None:
    site = applied_releases.restore(3)
    assert site.run("rollback", "--to", "r1", "--json").json["release"] == "web/tags/r1"
    assert "Notice: web r1" in site.run("apply").out
    site.run("rollback", "--end", code=0)
    assert "Notice: web r3" in site.run("apply").out
    missing = site.run("rollback", "--to", "r9", code=2)
    assert "no good run of web/tags/r9" in missing.err


def test_a_second_rollback_goes_further_back_and_commands_report_it(
    applied_releases: AppliedReleases,
) -> None:
    site = applied_releases.restore(3)
    assert site.run("rollback", "--json").json["release"] == "web/tags/r2"
    site.run("apply", code=0)
    status = site.run("status")
    assert "rolled back to web/tags/r2 by " in status.out
    assert "'localpuppet apply' runs it" not in status.out
    again = site.run("rollback", "--json").json
    assert (again["from"], again["release"], again["input_release"]) == (
        "web/tags/r2",
        "web/tags/r1",
        "web/tags/r3",
    )
    assert site.run("status", "--json").json["rollback"]["release"] == "web/tags/r1"
    assert "rolled back to web/tags/r1 by " in site.run("check").err
    assert "the input names web/tags/r3; 'localpuppet apply' runs it" in site.run("status").out
    sample = 'localpuppet_rolled_back{release="web/tags/r1",input_release="web/tags/r3"} 1\n'
    assert sample in (site.state / "metrics.prom").read_text()
    further = site.run("rollback", code=2)
    assert "no good run of a release of 'web' before web/tags/r1" in further.err
    ended = site.run("rollback", "--end", "--json").json
    assert ended["ended"]["release"] == "web/tags/r1"
    assert site.run("rollback", "--end", "--json").json["ended"] is None
    assert "localpuppet_rolled_back" not in (site.state / "metrics.prom").read_text()
    assert site.run("status", "--json").json["rollback"] is None


def test_a_rollback_does_not_expire_with_the_records_of_runs(
    applied_releases: AppliedReleases,
) -> None:
    site = applied_releases.restore(1)
    more_settings(site, keep={"runs": 1})
    good = site.status()
    release(site, applied_releases.forge, "r2")
    site.write("input.yaml", "app: web/tags/r2\nclasses: [web]\n")
    site.run("apply", code=0)
    site.run("apply", "--noop", code=0)
    assert len(site.runs()) == 1
    listed = site.run("release", "list", "--json").json["releases"]
    assert [row["applied"] for row in listed] == ["previous", "current"]
    rolled = site.run("rollback", code=0)
    ended = good["finished_at"][:19].replace("T", " ")
    assert f"from web/tags/r2 to web/tags/r1, as it ran on {ended} UTC" in rolled.out
    done = site.run("apply")
    assert "Notice: web r1" in done.out
    assert "Notice: dist r7" in done.out, "the current input names only web"
    mode = (site.state / "good_runs").stat().st_mode
    assert mode & 0o777 == 0o700


def test_a_node_that_changed_its_source_has_one_current_release(
    applied_releases: AppliedReleases,
) -> None:
    site, forge = applied_releases.restore(2), applied_releases.forge
    sources = {"web": {"git": forge.repo("web").url}, "dist": {"git": forge.repo("dist").url}}
    more_settings(site, sources={**sources, "shop": sources["web"]})
    site.write("input.yaml", "app: shop/tags/r2\nclasses: [web]\n")
    site.run("apply", code=0)
    listed = site.run("release", "list", "--json").json["releases"]
    assert {row["release"]: row["applied"] for row in listed} == {
        "shop/tags/r2": "current",
        "web/tags/r1": None,
        "web/tags/r2": "last of web",
    }


def test_a_rollback_stages_an_incomplete_release_or_names_the_command(
    applied_releases: AppliedReleases,
) -> None:
    site = applied_releases.restore(3)
    more_settings(site, keep={"releases": 2})
    applied(site, applied_releases.forge, "r4")
    gone = site.run("release", "gc", "--json").json["releases"]
    assert gone == ["web/tags/r1", "web/tags/r2"]
    rolled = site.run("rollback", "--to", "r2", code=0)
    assert "web/tags/r2 is incomplete on this node: staging it" in rolled.err
    assert "Notice: web r2" in site.run("apply").out
    remove_tree(site.state / "mirrors")
    away = applied_releases.forge.repo("web").path
    away.rename(away.with_name("away"))
    refused = site.run("rollback", "--to", "r1", code=69)
    assert "web/tags/r1 is incomplete on this node and cannot be staged: " in refused.err
    assert "run 'localpuppet stage web/tags/r1'" in refused.err
    assert site.run("status", "--json").json["rollback"]["release"] == "web/tags/r2"


def test_a_changed_input_ends_a_rollback_and_another_input_does_not(
    applied_releases: AppliedReleases,
) -> None:
    site = applied_releases.restore(2)
    site.run("rollback", code=0)
    other = site.write("other.yaml", "app: web/tags/r2\nclasses: [web]\n")
    assert "Notice: web r2" in site.run("apply", str(other)).out
    assert "Notice: web r1" in site.run("apply").out
    sample = 'localpuppet_rolled_back{release="web/tags/r1",input_release="web/tags/r2"} 1\n'
    assert sample in (site.state / "metrics.prom").read_text()
    site.write("input.yaml", "app: web/tags/r2\nclasses: [web]\n")
    assert site.run("status", "--json").json["rollback"] is None
    forward = site.run("apply", "--noop")
    # Puppet 7 says what it should be, and Puppet 8 as what it is defined.
    assert re.search(r"(?:should be|defined 'message' as) 'web r2' \(noop\)", forward.out)
    assert "rolled back" not in forward.err
    assert site.run("status", "--json").json["rollback"] is None
    assert "localpuppet_rolled_back" not in (site.state / "metrics.prom").read_text()


def test_an_input_with_an_older_release_is_refused_unless_allowed(
    applied_releases: AppliedReleases,
) -> None:
    site = applied_releases.restore(3)
    point_at(site, "r2")
    for words in (["apply"], ["check"], ["check", str(site.root / "input.yaml")]):
        refused = site.run(*words, code=2)
        assert "web/tags/r2: is older than web/tags/r3" in refused.err
    site.run("check", "--allow-older", code=0)
    site.run("apply", "--noop", "--allow-older", code=0)
    allowed = site.run("apply", "--allow-older")
    assert "Notice: web r2" in allowed.out
    listed = site.run("release", "list", "--json").json["releases"]
    assert [row["applied"] for row in listed] == ["previous", "current", None]
    point_at(site, "r3")
    assert "Notice: web r3" in site.run("apply").out, "the newest release stays the newest"
    point_at(site, "r1")
    site.run("apply", code=2)


def dated(node: Node, forge: Forge, tag: str, days: int) -> None:
    """Release `web` with a tag timestamp some days after the first one."""
    release(node, forge, tag)
    web = forge.repo("web")
    put_tag(web, tag, payload(web, tag, tag, at=TAGGED_AT + days * 86400))


def test_tag_timestamps_decide_which_release_is_older(site: Node, forge: Forge) -> None:
    """Also for a release that this node never applied."""
    dated(site, forge, "r2", 2)
    dated(site, forge, "r4", 4)
    dated(site, forge, "r5", 5)
    point_at(site, "r4")
    site.run("apply", code=0)
    point_at(site, "r2")
    for _ in range(2):
        refused = site.run("apply", code=2)
        assert "web/tags/r2: is older than web/tags/r4, by tag timestamp" in refused.err
    point_at(site, "r4")
    site.run("apply", code=0)
    point_at(site, "r5")
    site.run("apply", code=0)


def test_a_moved_tag_of_a_collected_release_is_still_an_alarm(site: Node, forge: Forge) -> None:
    site.run("stage", "--no-parse", code=0)
    release(site, forge, "r2")
    point_at(site, "r2")
    site.run("stage", "--no-parse", code=0)
    os.utime(site.state / "staged" / "web%tags%r1.json", (0, 0))  # staged long ago
    site.run("release", "gc", code=0)
    assert not (site.root / "modules/web/tags/r1").exists()
    web = forge.repo("web")
    web.git("tag", "-f", "-a", "-m", "moved", "r1")
    alarm = site.run("stage", "web/tags/r1", "--no-parse", code=3)
    assert "the tag r1 has moved" in alarm.err
    site.run("stage", "web/tags/r1", "--accept-moved", "--no-parse", code=0)


def test_list_marks_the_current_release_and_the_target_of_a_rollback(
    applied_releases: AppliedReleases,
) -> None:
    """A release without a successful run is not a target, even if it was applied before."""
    site, forge = applied_releases.restore(1), applied_releases.forge
    release(site, forge, "r2")
    broken = {"web/manifests/init.pp": "class web { fail('broken') }\n"}
    forge.repo("web").commit(broken, "r0")
    for tag in ("r0", "r2"):
        point_at(site, tag)
        site.run("apply")

    def marks() -> dict[str, str | None]:
        rows = site.run("release", "list", "--json").json["releases"]
        return {row["release"].rpartition("/")[2]: row["applied"] for row in rows}

    assert marks() == {"r0": None, "r1": "previous", "r2": "current"}
    site.run("rollback", code=0)
    assert marks() == {"r0": None, "r1": "current", "r2": None}
