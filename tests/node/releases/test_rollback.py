"""Switching to a release, and rolling back."""

from localpuppet.base.machine.files import remove_tree
from tests.rigs.applied import AppliedReleases
from tests.rigs.forge import applied, more_settings, point_at, release
from tests.rigs.node import Node


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


def test_a_rollback_applies_release_and_document_of_the_earlier_run(sites: AppliedReleases) -> None:
    site = sites.restore(1)
    release(site, sites.forge, "r2")
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


def test_a_rollback_can_name_its_release_and_can_be_ended(sites: AppliedReleases) -> None:
    site = sites.restore(3)
    assert site.run("rollback", "--to", "r1", "--json").json["release"] == "web/tags/r1"
    assert "Notice: web r1" in site.run("apply").out
    site.run("rollback", "--end", code=0)
    assert "Notice: web r3" in site.run("apply").out
    missing = site.run("rollback", "--to", "r9", code=2)
    assert "no good run of web/tags/r9" in missing.err


def test_a_second_rollback_goes_further_back_and_commands_report_it(sites: AppliedReleases) -> None:
    site = sites.restore(3)
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
    assert "'localpuppet rollback --end' returns to the input" in further.err
    ended = site.run("rollback", "--end", "--json").json
    assert ended["ended"]["release"] == "web/tags/r1"
    assert site.run("rollback", "--end", "--json").json["ended"] is None
    assert "localpuppet_rolled_back" not in (site.state / "metrics.prom").read_text()
    assert site.run("status", "--json").json["rollback"] is None


def test_a_rollback_does_not_expire_with_the_records_of_runs(sites: AppliedReleases) -> None:
    site = sites.restore(1)
    more_settings(site, keep={"runs": 1})
    good = site.status()
    release(site, sites.forge, "r2")
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


def test_a_node_with_a_new_source_has_one_current_release(sites: AppliedReleases) -> None:
    site, forge = sites.restore(2), sites.forge
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


def test_a_rollback_stages_an_incomplete_release(sites: AppliedReleases) -> None:
    site = sites.restore(3)
    more_settings(site, keep={"releases": 2})
    applied(site, sites.forge, "r4")
    gone = site.run("release", "gc", "--json").json["releases"]
    assert gone == ["web/tags/r1", "web/tags/r2"]
    rolled = site.run("rollback", "--to", "r2", code=0)
    assert "web/tags/r2 is incomplete on this node: staging it" in rolled.err
    assert "Notice: web r2" in site.run("apply").out
    remove_tree(site.state / "mirrors")
    away = sites.forge.repo("web").path
    away.rename(away.with_name("away"))
    refused = site.run("rollback", "--to", "r1", code=69)
    assert "web/tags/r1 is incomplete on this node and cannot be staged: " in refused.err
    assert "run 'localpuppet stage web/tags/r1'" in refused.err
    assert site.run("status", "--json").json["rollback"]["release"] == "web/tags/r2"


def test_an_input_with_an_older_release_is_refused_unless_allowed(sites: AppliedReleases) -> None:
    site = sites.restore(3)
    point_at(site, "r2")
    for words in (["apply"], ["check"], ["check", str(site.root / "input.yaml")]):
        refused = site.run(*words, code=2)
        assert "web/tags/r2: is older than web/tags/r3" in refused.err
    site.run("check", "--allow-older", code=0)
    assert "Notice: web r2" in site.run("apply", "--allow-older").out
    listed = site.run("release", "list", "--json").json["releases"]
    assert [row["applied"] for row in listed] == ["previous", "current", None]


def test_list_marks_the_current_release_and_that_of_a_rollback(sites: AppliedReleases) -> None:
    """A release without a successful run is not a target, even if it was applied before."""
    site, forge = sites.restore(1), sites.forge
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
