"""Staged releases of a node: listing, verification, repair, clean-up and removal."""

import json
import os
from pathlib import Path

import pytest

from localpuppet.base.errors import (
    StateError,
    UnavailableError,
)
from localpuppet.node.releases.staged_records import StagedRelease
from tests.rigs.staged import DIST, R1, R2, ReleaseSite, url


def rubbish(site: ReleaseSite) -> list[Path]:
    return list(site.root.rglob(".*")) + list((site.state / "staging").glob("*"))


def test_only_staged_releases_are_known(web_site: ReleaseSite) -> None:
    staging = web_site.staging()
    assert (staging.records.of(R1), staging.records.all()) == (None, [])
    staged = staging.stage(R1)
    assert (staging.records.of(R1), staging.records.of(R2), staging.records.all()) == (
        staged,
        None,
        [staged],
    )


def test_all_releases_are_listed_by_name(web_site: ReleaseSite) -> None:
    web_site.release(R2)
    web_site.staging().stage(R2)
    web_site.staging().stage(R1)
    assert [staged.release for staged in web_site.staging().records.all()] == [R1, R2]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "release": "x"}'])
def test_a_damaged_record_is_an_error_and_not_a_missing_release(
    web_site: ReleaseSite, text: str
) -> None:
    web_site.staging().stage(R1)
    (record,) = (web_site.state / "staged").iterdir()
    record.write_text(text)
    with pytest.raises(StateError, match=r"damaged|has schema 2"):
        web_site.staging().records.of(R1)
    with pytest.raises(StateError, match=r"damaged|has schema 2"):
        web_site.staging().records.all()


def edit(site: ReleaseSite) -> None:
    file = (site.modules / R1 / "web/manifests/init.pp").resolve()
    file.chmod(0o644)
    file.write_text("class web { notify { 'edited': } }\n")


def lose_a_module(site: ReleaseSite) -> None:
    known = site.staging().records.of(R1)
    assert known is not None
    site.store.remove(known.modules["ntp"])


def add_to_the_links(site: ReleaseSite) -> None:
    ((site.modules / R1).resolve() / "more").symlink_to("/etc")


def turn_a_link(site: ReleaseSite) -> None:
    link = (site.modules / R1).resolve() / "ntp"
    link.unlink()
    link.symlink_to("/etc")


def lose_the_collections_name(site: ReleaseSite) -> None:
    (site.modules / DIST).unlink()


def turn_the_own_name(site: ReleaseSite) -> None:
    (site.modules / R1).unlink()
    (site.modules / R1).symlink_to("/etc")


HARM = {
    "edited": (edit, f"{R1} was changed"),
    "a module is gone": (lose_a_module, "module ntp is missing"),
    "one link more": (add_to_the_links, "its link directory was changed"),
    "a link elsewhere": (turn_a_link, "its link directory was changed"),
    "no collection": (lose_the_collections_name, f"{DIST} does not point into the store"),
    "a name elsewhere": (turn_the_own_name, f"{R1} does not point into the store"),
}


@pytest.mark.parametrize("name", HARM)
def test_damage_to_a_release_is_reported_and_staging_repairs_it(
    web_site: ReleaseSite, name: str
) -> None:
    harm, problem = HARM[name]
    staged = web_site.staging().stage(R1)
    assert web_site.staging().problems(staged, full=False) == []
    harm(web_site)
    problems = web_site.staging().problems(staged, full=False)
    assert len(problems) == 1, problems
    assert problem in problems[0]
    assert web_site.staging().stage(R1) == staged
    assert web_site.staging().problems(staged, full=True) == []
    assert web_site.says(R1) == "r1"


def test_an_edit_that_keeps_size_and_time_is_detected_by_the_digest(web_site: ReleaseSite) -> None:
    staged = web_site.staging().stage(R1)
    file = (web_site.modules / R1 / "web/manifests/init.pp").resolve()
    status = file.stat()
    file.chmod(0o644)
    file.write_text(file.read_text().replace("r1", "rX"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    file.chmod(0o444)
    assert web_site.staging().problems(staged, full=False) == []
    assert "has the digest" in web_site.staging().problems(staged, full=True)[0]


def test_a_release_is_repaired_without_its_server_only_if_no_tree_is_missing(
    web_site: ReleaseSite,
) -> None:
    staged = web_site.staging().stage(R1)
    web_site.servers.away |= {url("web"), url("ntp"), url("dist")}
    lose_the_collections_name(web_site)
    assert web_site.staging().stage(R1) == staged, "a missing link needs no fetch"
    edit(web_site)
    with pytest.raises(UnavailableError):
        web_site.staging().stage(R1, refresh=True)


def test_incomplete_files_of_a_killed_process_are_removed(web_site: ReleaseSite) -> None:
    left = [
        web_site.state / "releases/.new-1234/web",
        web_site.state / "staged/.record.json.1234",
        web_site.modules / "web/tags/.r1.1234",
        web_site.state / "staging/1234/0/web",
        web_site.state / "index/.1234",
    ]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    web_site.staging().stage(R1)
    assert [path for path in left if path.exists()] == []
    assert (web_site.repository.swept, rubbish(web_site)) == (1, [])


def test_removing_a_release_keeps_the_collections_of_another(
    web_site: ReleaseSite,
) -> None:
    web_site.release(R2)
    staging = web_site.staging()
    first, second = staging.stage(R1), staging.stage(R2)
    staging.remove(first, kept=[second])
    assert (web_site.names(), staging.records.of(R1)) == ([DIST, R2], None)
    assert (web_site.state / "releases" / first.composition).exists(), "a run may use it"
    assert staging.problems(second, full=True) == []
    staging.remove(second, kept=[])
    assert (web_site.names(), staging.records.all()) == ([], [])


def test_a_directory_of_links_that_two_releases_share_stays(web_site: ReleaseSite) -> None:
    web_site.release(R1, "same")
    web_site.release(R2, "same")
    staging = web_site.staging()
    first, second = staging.stage(R1), staging.stage(R2)
    assert first.composition == second.composition
    staging.remove(first, kept=[second])
    assert staging.problems(second, full=True) == []
    assert web_site.says(R2) == "same"


def test_the_record_has_the_pins_of_the_lock_and_of_the_tag(web_site: ReleaseSite) -> None:
    staged = web_site.staging().stage(R1)
    (file,) = (web_site.state / "staged").iterdir()
    lock = web_site.lock()
    raw = json.loads(file.read_text())
    assert file.name == "web%tags%r1.json"
    assert raw["modules"] == {"ntp": lock.modules["ntp"].tree_sha256}
    assert raw["sources"] == {DIST: lock.sources[DIST].tree_sha256}
    assert raw["pin"]["commit"] == web_site.servers.published[url("web"), "r1"].found.commit
    assert StagedRelease.from_dict(raw) == staged
