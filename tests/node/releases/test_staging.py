"""Staging with a repository in memory and real files: a named release is complete."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

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
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.manifest import Lock
from localpuppet.node.releases.staged_records import StagedRelease
from tests.rigs.staged import DIST, R1, R2, ReleaseSite, url


class Approval:
    """Checks a release before it gets its name, and may refuse it."""

    def __init__(self, site: ReleaseSite, refusal: LocalpuppetError | None = None) -> None:
        self._site = site
        self._refusal = refusal
        self.asked: list[ReleasePath] = []
        self.names_then: list[str] = []

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


def test_a_staged_release_has_its_name_modules_and_collections(web_site: ReleaseSite) -> None:
    staged = web_site.staging().stage(R1)
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


def test_a_release_gets_its_name_after_all_its_trees_are_complete(web_site: ReleaseSite) -> None:
    approval = Approval(web_site)
    web_site.staging(approval).stage(R1)
    assert (approval.asked, approval.names_then) == ([R1], [])
    assert web_site.names() == [DIST, R1]


def test_a_refused_release_gets_no_name_and_no_record(web_site: ReleaseSite) -> None:
    refusal = InvalidInputError("Puppet cannot parse it")
    with pytest.raises(InvalidInputError, match="cannot parse"):
        web_site.staging(Approval(web_site, refusal)).stage(R1)
    assert (
        web_site.names(),
        web_site.staging().records.of(R1),
        web_site.staging().records.all(),
    ) == (
        [],
        None,
        [],
    )
    assert not list((web_site.state / "releases").iterdir())
    assert web_site.staging().stage(R1).release == R1, "a later approval is possible"


def test_a_refused_refresh_keeps_the_staged_release(web_site: ReleaseSite) -> None:
    web_site.staging().stage(R1)
    web_site.release(R1, "moved")
    before = (web_site.names(), web_site.staging().records.of(R1))
    with pytest.raises(InvalidInputError):
        approval = Approval(web_site, InvalidInputError("no"))
        web_site.staging(approval).stage(R1, accept_moved=True)
    assert (web_site.names(), web_site.staging().records.of(R1)) == before
    assert web_site.says(R1) == "r1"
    assert web_site.staging().problems(before[1], full=True) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["web", "ntp", "dist"])
def test_an_unreachable_repository_prevents_staging(web_site: ReleaseSite, name: str) -> None:
    web_site.servers.away.add(url(name))
    with pytest.raises(UnavailableError, match=name):
        web_site.staging().stage(R1)
    assert (web_site.names(), web_site.staging().records.all(), web_site.store.digests()) == (
        [],
        [],
        [],
    )
    assert list((web_site.state / "staging").glob("*")) == []


@pytest.mark.parametrize("place", ["modules.ntp", "sources.dist/tags/r7"])
def test_bytes_that_differ_from_the_lock_prevent_staging(web_site: ReleaseSite, place: str) -> None:
    lock = web_site.lock()
    wrong = {
        name: replace(pin, tree_sha256="0" * 64)
        for name, pin in lock.pins.items()
        if isinstance(pin, Pin)
    }
    lock = Lock(
        modules={"ntp": wrong["modules.ntp"]} if place == "modules.ntp" else lock.modules,
        sources=lock.sources if place == "modules.ntp" else {DIST: wrong[place]},
    )
    web_site.release(R2, lock=lock)
    with pytest.raises(IntegrityError, match=f"{place}: has the digest"):
        web_site.staging().stage(R2)
    assert (web_site.names(), web_site.staging().records.all()) == ([], [])


def test_a_complete_staged_release_is_not_fetched_again(web_site: ReleaseSite) -> None:
    first = web_site.staging().stage(R1)
    asked = list(web_site.repository.asked)
    assert asked == [(url("web"), "r1"), (url("ntp"), "v1"), (url("dist"), "r7")]
    approval = Approval(web_site)
    assert web_site.staging(approval).stage(R1) == first
    assert (web_site.repository.asked, approval.asked) == (asked, [])


def test_trees_of_another_release_are_not_fetched_again(web_site: ReleaseSite) -> None:
    web_site.staging().stage(R1)
    web_site.repository.asked.clear()
    web_site.repository.written.clear()
    found = web_site.release(R2)
    web_site.staging().stage(R2)
    assert web_site.repository.asked == [(url("web"), "r2")]
    assert web_site.repository.written == [found.tree]
    assert (web_site.says(R1), web_site.says(R2)) == ("r1", "r2")


def test_without_a_refresh_a_moved_tag_does_not_change_a_staged_release(
    web_site: ReleaseSite,
) -> None:
    staged = web_site.staging().stage(R1)
    web_site.release(R1, "evil")
    assert web_site.staging().stage(R1) == staged
    assert web_site.says(R1) == "r1"


def test_a_moved_tag_is_an_alarm_and_changes_no_release(web_site: ReleaseSite) -> None:
    web_site.staging().stage(R1)
    before = web_site.names(), web_site.staging().records.all()
    web_site.release(R1, "evil")
    with pytest.raises(IntegrityError, match="the tag r1 has moved"):
        web_site.staging().stage(R1, refresh=True)
    assert (web_site.names(), web_site.staging().records.all()) == before
    assert web_site.says(R1) == "r1"


def test_a_tag_with_another_object_for_the_same_commit_has_moved(web_site: ReleaseSite) -> None:
    web_site.staging().stage(R1)
    web_site.servers.publish(url("web"), "r1", web_site.files("r1"), annotated=False)
    with pytest.raises(IntegrityError, match="has moved"):
        web_site.staging().stage(R1, refresh=True)


def test_a_refresh_of_an_unmoved_tag_changes_nothing(web_site: ReleaseSite) -> None:
    staged = web_site.staging().stage(R1)
    before = web_site.names()
    web_site.repository.asked.clear()
    assert web_site.staging().stage(R1, refresh=True) == staged
    assert web_site.repository.asked == [(url("web"), "r1")]
    assert web_site.names() == before


def test_a_moved_tag_is_staged_with_accept_moved(web_site: ReleaseSite) -> None:
    first = web_site.staging().stage(R1)
    found = web_site.release(R1, "moved on purpose")
    second = web_site.staging().stage(R1, accept_moved=True)
    assert (second.pin.commit, second.pin.tag_object) == (found.commit, found.id)
    assert second.pin.tree_sha256 != first.pin.tree_sha256
    assert web_site.says(R1) == "moved on purpose"
    assert web_site.staging().records.of(R1) == second
    assert web_site.staging().problems(second, full=True) == []


@pytest.mark.parametrize("name", ["ntp", "dist"])
def test_a_moved_tag_of_a_dependency_is_an_alarm_even_with_accept_moved(
    web_site: ReleaseSite, name: str
) -> None:
    """Only the maker of the release can change the pins in its lock."""
    tag = {"ntp": "v1", "dist": "r7"}[name]
    web_site.servers.publish(url(name), tag, {"manifests/init.pp": b"class evil {}\n"})
    for accept in (False, True):
        with pytest.raises(IntegrityError, match=rf"manifest.lock: .*{name}.*the tag {tag}"):
            web_site.staging().stage(R1, accept_moved=accept)
    assert (web_site.names(), web_site.staging().records.all()) == ([], [])


def test_the_tag_of_a_source_that_requires_signatures_is_verified(web_site: ReleaseSite) -> None:
    keys = web_site.root / "keys"
    keys.write_text("alice")
    web_site.sources["web"] = web_site.source("web", keys)
    with pytest.raises(IntegrityError, match="signature"):
        web_site.staging().stage(R1)
    assert web_site.names() == []
    web_site.servers.publish(url("web"), "r1", web_site.files("signed"), signer="alice")
    web_site.staging().stage(R1)
    assert web_site.says(R1) == "signed"


def test_the_tag_of_a_collection_whose_source_requires_signatures_is_verified(
    web_site: ReleaseSite,
) -> None:
    keys = web_site.root / "keys"
    keys.write_text("alice")
    web_site.sources["dist"] = web_site.source("dist", keys)
    with pytest.raises(IntegrityError, match=r"dist.git tag r7: has no valid signature"):
        web_site.staging().stage(R1)
    assert web_site.names() == []
    web_site.servers.publish(url("dist"), "r7", web_site.dist, signer="alice")
    web_site.staging().stage(R1)
    assert web_site.names() == [DIST, R1]


def test_a_module_and_a_directory_of_the_release_cannot_have_one_name(
    web_site: ReleaseSite,
) -> None:
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


def test_only_one_process_stages_and_it_releases_the_lock_after_success_and_failure(
    web_site: ReleaseSite,
) -> None:
    lock = web_site.store.locks.take_for_changes()
    with pytest.raises(BusyError):
        web_site.staging().stage(R1)
    lock.release()
    web_site.servers.away.add(url("ntp"))
    with pytest.raises(UnavailableError):
        web_site.staging().stage(R1)
    web_site.store.locks.take_for_changes().release()
    web_site.servers.away.clear()
    web_site.staging().stage(R1)
    web_site.store.locks.take_for_changes().release()
