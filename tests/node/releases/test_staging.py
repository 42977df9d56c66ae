"""Staging with a repository in memory and real files: complete, verified, repaired, removed."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import (
    BusyError,
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    StateError,
    UnavailableError,
)
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.releases.release_records import StagedRelease, TagMemory
from tests.rigs.staged import DIST, R1, R2, ReleaseSite, url


class Approval:
    """Checks a release before it gets its name, and may refuse it."""

    def __init__(self, site: ReleaseSite, refusal: LocalpuppetError | None = None) -> None:
        self._site = site
        self._refusal = refusal
        self.asked: list[ReleasePath] = []
        self.names_then = ["not asked"]

    def __call__(
        self, staged: StagedRelease, modulepath: Mapping[str, Path], own_code: Mapping[str, Path]
    ) -> None:
        site = self._site
        self.asked.append(staged.release)
        self.names_then = site.names()
        own, dist = (modulepath[str(site.modules / name)] for name in (staged.release, DIST))
        assert list(modulepath) == [str(site.modules / staged.release), str(site.modules / DIST)]
        assert (own / "ntp/manifests/init.pp").read_bytes() == site.ntp["manifests/init.pp"]
        assert (own / "web/manifests/init.pp").exists()
        assert (dist / "platform/manifests/init.pp").exists()
        for sha256 in staged.digests:
            assert site.store.problem(sha256, full=True) == ""
        if self._refusal is not None:
            raise self._refusal


def test_a_complete_release_gets_its_name_modules_and_collections(web_site: ReleaseSite) -> None:
    approval = Approval(web_site)
    staged = web_site.staging(approval).stage(R1)
    assert (approval.asked, approval.names_then) == ([R1], [])
    assert web_site.names() == [DIST, R1]
    own = web_site.modules / R1
    assert own.readlink() == web_site.state / "releases" / staged.composition
    assert sorted(path.name for path in own.iterdir()) == [
        "manifest.lock",
        "manifest.yaml",
        "ntp",
        "web",
    ]
    assert (own / "ntp/manifests/init.pp").read_bytes() == web_site.ntp["manifests/init.pp"]
    collection = web_site.modules / DIST / "platform/manifests/init.pp"
    assert collection.read_bytes() == web_site.dist["platform/manifests/init.pp"]
    assert web_site.says(R1) == "r1"


def test_a_refused_release_gets_no_name_and_no_record(web_site: ReleaseSite) -> None:
    refusal = InvalidInputError("Puppet cannot parse it")
    with pytest.raises(InvalidInputError, match="cannot parse"):
        web_site.staging(Approval(web_site, refusal)).stage(R1)
    records = web_site.staging().records
    assert (web_site.names(), records.of(R1), records.all()) == ([], None, [])
    assert not list((web_site.state / "releases").iterdir())
    assert web_site.staging().stage(R1).release == R1, "a later approval is possible"


@pytest.mark.parametrize("name", ["web", "ntp", "dist"])
def test_an_unreachable_repository_prevents_staging(web_site: ReleaseSite, name: str) -> None:
    web_site.servers.away.add(url(name))
    with pytest.raises(UnavailableError, match=name):
        web_site.staging().stage(R1)
    assert (web_site.names(), web_site.staging().records.all()) == ([], [])
    assert (web_site.store.digests(), list((web_site.state / "staging").glob("*"))) == ([], [])


@pytest.mark.parametrize(
    ("place", "name"), [("modules", "ntp"), ("sources", DIST)], ids=["module", "collection"]
)
def test_other_bytes_prevent_staging(web_site: ReleaseSite, place: str, name: str) -> None:
    lock = web_site.lock()
    pins = getattr(lock, place)
    wrong: Any = {name: replace(pins[name], tree_sha256="0" * 64)}
    web_site.release(R2, lock=replace(lock, **{place: wrong}))
    with pytest.raises(IntegrityError, match=f"{place}.{name}: has the digest"):
        web_site.staging().stage(R2)
    assert (web_site.names(), web_site.staging().records.all()) == ([], [])


def test_a_complete_staged_release_is_not_fetched_again(web_site: ReleaseSite) -> None:
    first = web_site.staging().stage(R1)
    asked = list(web_site.repository.asked)
    assert asked == [(url("web"), "r1"), (url("ntp"), "v1"), (url("dist"), "r7")]
    approval = Approval(web_site)
    assert web_site.staging(approval).stage(R1) == first
    assert (web_site.repository.asked, approval.asked) == (asked, [])
    before = web_site.names()
    web_site.repository.asked.clear()
    assert web_site.staging().stage(R1, refresh=True) == first
    assert web_site.repository.asked == [(url("web"), "r1")]
    assert web_site.names() == before


def test_trees_of_another_release_are_not_fetched_again(web_site: ReleaseSite) -> None:
    web_site.staging().stage(R1)
    web_site.repository.asked.clear()
    web_site.repository.written.clear()
    found = web_site.release(R2)
    web_site.staging().stage(R2)
    assert web_site.repository.asked == [(url("web"), "r2")]
    assert web_site.repository.written == [found.tree]
    assert (web_site.says(R1), web_site.says(R2)) == ("r1", "r2")


def test_a_moved_tag_is_an_alarm_of_a_refresh_and_changes_no_release(web_site: ReleaseSite) -> None:
    staged = web_site.staging().stage(R1)
    before = web_site.names(), web_site.staging().records.all()
    web_site.release(R1, "evil")
    assert web_site.staging().stage(R1) == staged
    with pytest.raises(IntegrityError, match="the tag r1 has moved"):
        web_site.staging().stage(R1, refresh=True)
    assert (web_site.names(), web_site.staging().records.all()) == before
    assert web_site.says(R1) == "r1"
    # Another object for the same commit.
    web_site.servers.publish(url("web"), "r1", web_site.files("r1"), annotated=False)
    with pytest.raises(IntegrityError, match="has moved"):
        web_site.staging().stage(R1, refresh=True)
    web_site.staging().remove(staged, kept=[])
    with pytest.raises(IntegrityError, match="has moved"):
        web_site.staging().stage(R1)


def test_a_moved_tag_is_staged_with_accept_moved_if_it_is_good(web_site: ReleaseSite) -> None:
    first = web_site.staging().stage(R1)
    found = web_site.release(R1, "moved on purpose")
    before = web_site.names()
    with pytest.raises(InvalidInputError):
        approval = Approval(web_site, InvalidInputError("no"))
        web_site.staging(approval).stage(R1, accept_moved=True)
    assert (web_site.names(), web_site.staging().records.of(R1)) == (before, first)
    assert web_site.says(R1) == "r1"
    assert web_site.staging().problems(first, full=True) == []
    second = web_site.staging().stage(R1, accept_moved=True)
    assert (second.pin.commit, second.pin.tag_object) == (found.commit, found.id)
    assert second.pin.tree_sha256 != first.pin.tree_sha256
    assert web_site.says(R1) == "moved on purpose"
    assert web_site.staging().records.of(R1) == second
    assert web_site.staging().problems(second, full=True) == []


@pytest.mark.parametrize("name", ["ntp", "dist"])
def test_a_moved_tag_of_a_dependency_is_always_an_alarm(web_site: ReleaseSite, name: str) -> None:
    """Only the maker of the release can change the pins in its lock."""
    tag = {"ntp": "v1", "dist": "r7"}[name]
    web_site.servers.publish(url(name), tag, {"manifests/init.pp": b"class evil {}\n"})
    for accept in (False, True):
        with pytest.raises(IntegrityError, match=rf"manifest.lock: .*{name}.*the tag {tag}"):
            web_site.staging().stage(R1, accept_moved=accept)
    assert (web_site.names(), web_site.staging().records.all()) == ([], [])


@pytest.mark.parametrize(("name", "tag"), [("web", "r1"), ("dist", "r7")])
def test_a_tag_that_must_be_signed_is_verified(web_site: ReleaseSite, name: str, tag: str) -> None:
    keys = web_site.root / "keys"
    keys.write_text("alice")
    web_site.sources[name] = web_site.source(name, keys)
    with pytest.raises(IntegrityError, match=rf"{name}.git tag {tag}: has no valid signature"):
        web_site.staging().stage(R1)
    assert web_site.names() == []
    files = {"web": web_site.files("r1"), "dist": web_site.dist}[name]
    web_site.servers.publish(url(name), tag, files, signer="alice")
    web_site.staging().stage(R1)
    assert web_site.names() == [DIST, R1]


def test_a_module_and_a_directory_cannot_have_one_name(web_site: ReleaseSite) -> None:
    files = {**web_site.files("r2"), "ntp/manifests/init.pp": b"class ntp {}\n"}
    web_site.servers.publish(url("web"), "r2", files)
    with pytest.raises(InvalidInputError, match="a directory 'ntp', and its manifest a module"):
        web_site.staging().stage(R2)
    assert web_site.names() == []


def test_a_directory_in_the_way_of_a_name_is_kept(web_site: ReleaseSite) -> None:
    mine = web_site.modules / R1 / "precious"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(StateError, match="not a link into the store"):
        web_site.staging().stage(R1)
    assert mine.read_text() == "mine"


def test_the_error_of_an_unknown_source_suggests_a_similar_one(web_site: ReleaseSite) -> None:
    with pytest.raises(InvalidInputError, match=r"'wbe' is not a source .*did you mean 'web'"):
        web_site.staging().stage(ReleasePath("wbe/tags/r1"))


def test_only_one_process_stages_and_it_releases_the_lock(web_site: ReleaseSite) -> None:
    lock = web_site.store.locks.take_for_changes()
    with pytest.raises(BusyError, match="another process changes the store"):
        web_site.staging().stage(R1)
    lock.release()
    web_site.servers.away.add(url("ntp"))
    with pytest.raises(UnavailableError):
        web_site.staging().stage(R1)
    web_site.store.locks.take_for_changes().release()
    web_site.servers.away.clear()
    web_site.staging().stage(R1)
    web_site.store.locks.take_for_changes().release()


def rubbish(site: ReleaseSite) -> list[Path]:
    return list(site.root.rglob(".*")) + list((site.state / "staging").glob("*"))


def test_only_staged_releases_are_known_and_listed_by_name(web_site: ReleaseSite) -> None:
    web_site.release(R2)
    staging = web_site.staging()
    records = staging.records
    assert (records.of(R1), records.all()) == (None, [])
    second = staging.stage(R2)
    assert (records.of(R2), records.of(R1), records.all()) == (second, None, [second])
    assert records.all() == [second]
    first = staging.stage(R1)
    assert records.all() == [first, second]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "release": "x"}'])
def test_a_damaged_record_is_not_a_missing_release(web_site: ReleaseSite, text: str) -> None:
    web_site.staging().stage(R1)
    (record,) = (web_site.state / "staged").iterdir()
    record.write_text(text)
    records = web_site.staging().records
    for read in (lambda: records.of(R1), records.all):
        with pytest.raises(StateError, match=r"damaged|has schema 2"):
            read()


def edit(site: ReleaseSite) -> None:
    file = own(site) / "web/manifests/init.pp"
    file.chmod(0o644)
    file.write_text("class web { notify { 'edited': } }\n")


def lose_a_module(site: ReleaseSite) -> None:
    known = site.staging().records.of(R1)
    assert known is not None
    site.store.remove(known.modules["ntp"])


def turn(link: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to("/etc")


def own(site: ReleaseSite) -> Path:
    return (site.modules / R1).resolve()


def lose_the_collections_name(site: ReleaseSite) -> None:
    (site.modules / DIST).unlink()


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        pytest.param(edit, f"{R1} was changed", id="edited"),
        pytest.param(lose_a_module, "module ntp is missing", id="a module is gone"),
        pytest.param(
            lambda site: turn(own(site) / "more"),
            "its link directory was changed",
            id="one link more",
        ),
        pytest.param(
            lambda site: turn(own(site) / "ntp"),
            "its link directory was changed",
            id="a link elsewhere",
        ),
        pytest.param(
            lose_the_collections_name, f"{DIST} does not point into the store", id="no collection"
        ),
        pytest.param(
            lambda site: turn(site.modules / R1),
            f"{R1} does not point into the store",
            id="a name elsewhere",
        ),
    ],
)
def test_damage_to_a_release_is_reported_and_staging_repairs_it(
    web_site: ReleaseSite, harm: Callable[[ReleaseSite], object], problem: str
) -> None:
    staged = web_site.staging().stage(R1)
    assert web_site.staging().problems(staged, full=False) == []
    harm(web_site)
    problems = web_site.staging().problems(staged, full=False)
    assert len(problems) == 1, problems
    assert problem in problems[0]
    assert web_site.staging().stage(R1) == staged
    assert web_site.staging().problems(staged, full=True) == []
    assert web_site.says(R1) == "r1"


def test_a_release_is_repaired_without_its_server_if_all_is_there(web_site: ReleaseSite) -> None:
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


def test_removing_a_release_keeps_the_collections_of_another(web_site: ReleaseSite) -> None:
    web_site.release(R2)
    staging = web_site.staging()
    first, second = staging.stage(R1), staging.stage(R2)
    staging.remove(first, kept=[second])
    assert (web_site.names(), staging.records.of(R1)) == ([DIST, R2], None)
    assert (web_site.state / "releases" / first.composition).exists(), "a run may use it"
    assert staging.problems(second, full=True) == []
    staging.remove(second, kept=[])
    assert (web_site.names(), staging.records.all()) == ([], [])


def test_what_changes_while_releases_are_verified_is_no_damage(web_site: ReleaseSite) -> None:
    web_site.release(R2)
    staging = web_site.staging()
    first, second = staging.stage(R1), staging.stage(R2)
    assert staging.verify([first, second], full=True) == {R1: [], R2: []}
    staging.remove(first, kept=[second])
    assert staging.verify([first, second], full=True) == {R2: []}, "gc has removed the other"
    web_site.release(R2, "moved on purpose")
    staging.stage(R2, accept_moved=True)
    web_site.store.remove(second.pin.tree_sha256)
    assert staging.verify([second], full=True) == {R2: []}, "staged again"
    (web_site.modules / R2).unlink()
    with web_site.store.locks.take_for_changes(), pytest.raises(BusyError):
        staging.verify([second], full=True)
    assert len(staging.verify([second], full=True)[R2]) == 1


def test_a_record_that_is_removed_while_all_are_read_is_left_out(web_site: ReleaseSite) -> None:
    staging = web_site.staging()
    staged = staging.stage(R1)
    (web_site.state / "staged" / "web%tags%gone.json").symlink_to("gone")
    assert staging.records.all() == [staged]


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
    memory = TagMemory(web_site.state)
    assert memory.tagged_at(R1) == web_site.servers.published[url("web"), "r1"].found.tagged_at
    assert memory.tagged_at(R1) is not None
