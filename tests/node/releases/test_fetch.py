"""The fetcher brings tags into the store: its questions, its checks and its failures."""

import os
import shutil
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.releases.fetch import Fetcher, WantedTag, compare_commits
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.git.git_names import GitUrl, Tag
from localpuppet.node.releases.git.mirrors import Git
from localpuppet.node.releases.git.program import GitProgram
from localpuppet.node.releases.store import Store
from tests.rigs.forge import Forge, Repo


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state")


@pytest.fixture
def fetcher(tmp_path: Path, store: Store) -> Fetcher:
    git = Git(tmp_path / "state/mirrors", GitProgram(env=os.environ, allow_file=True, timeout=60))
    return Fetcher(repository=git, store=store)


@pytest.fixture
def ntp(forge: Forge) -> Repo:
    repo = forge.repo("ntp")
    repo.commit({"manifests/init.pp": "class ntp {}\n"}, "v1")
    return repo


def wanted(repo: Repo, tag: str = "v1", pinned: Pin | None = None) -> WantedTag:
    return WantedTag(
        url=GitUrl(repo.url),
        tag=Tag(tag),
        where=f"lock: {tag}",
        pinned=pinned,
        tree_sha256=pinned.tree_sha256 if pinned else None,
    )


def test_a_tag_becomes_a_pin_and_a_tree(fetcher: Fetcher, store: Store, ntp: Repo) -> None:
    pin = fetcher.bring({"ntp": wanted(ntp)})["ntp"]
    assert (pin.url, pin.tag) == (ntp.url, "v1")
    assert pin.commit == ntp.git("rev-parse", "v1^{commit}")
    assert pin.tag_object == ntp.git("rev-parse", "refs/tags/v1")
    assert store.digests() == [pin.tree_sha256]


def test_a_stored_tag_is_fetched_only_with_ask_all(fetcher: Fetcher, ntp: Repo) -> None:
    pin = fetcher.bring({"ntp": wanted(ntp)})["ntp"]
    ntp.commit({"manifests/init.pp": "class ntp { fail('moved') }\n"})
    ntp.git("tag", "-f", "-a", "-m", "v1", "v1")
    assert fetcher.bring({"ntp": wanted(ntp, pinned=pin)}) == {"ntp": pin}
    with pytest.raises(IntegrityError, match="lock: v1: the tag v1 has moved"):
        fetcher.bring({"ntp": wanted(ntp, pinned=pin)}, ask_all=True)
    shutil.rmtree(ntp.path)
    assert fetcher.bring({"ntp": wanted(ntp, pinned=pin)}) == {"ntp": pin}


def test_either_all_trees_are_stored_or_none(
    fetcher: Fetcher, store: Store, ntp: Repo, forge: Forge
) -> None:
    other = forge.repo("other")
    other.commit({"a": "a\n"}, "v1")
    (other.path / "evil").symlink_to("/etc/shadow")
    other.commit({}, "v2")
    with pytest.raises(IntegrityError, match="an absolute symlink"):
        fetcher.bring({"ntp": wanted(ntp), "other": wanted(other, "v2")})
    assert store.digests() == []


def test_a_judged_tag_is_not_fetched_again(fetcher: Fetcher, ntp: Repo) -> None:
    item = wanted(ntp)
    found = fetcher.judge(item, refresh=True)
    shutil.rmtree(ntp.path)
    assert fetcher.bring({"ntp": item}, judged={"ntp": found})["ntp"].commit == found.commit


def test_different_commits_of_a_tag_on_other_nodes_are_reported() -> None:
    app = ReleasePath("web/tags/r1")
    pin = Pin(
        url=GitUrl("https://git.example.net/web.git"),
        tag=Tag("r1"),
        tag_object="1" * 40,
        commit="a" * 40,
        tree_sha256="2" * 64,
    )
    assert compare_commits(app, pin, {}) == ""
    assert compare_commits(app, pin, {"a" * 40: ["a1"]}) == ""
    other = {"b" * 40: ["b2", "b1"], "c" * 40: ["c1"]}
    difference = "is aaaaaaaaaaaa here, but bbbbbbbbbbbb on b1 and 1 more; cccccccccccc on c1"
    warning = compare_commits(app, pin, {"a" * 40: ["a1"], **other})
    assert warning == f"warning: {app}: the tag r1 {difference}; as here on a1: the tag was moved"
    with pytest.raises(IntegrityError, match=difference):
        compare_commits(app, pin, other)
