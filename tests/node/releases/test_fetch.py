"""The fetcher refuses the tag of another source, and a tag that other nodes know otherwise."""

from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.releases.fetch import Fetcher, WantedTag, compare_commits
from localpuppet.node.releases.git.git_names import GitUrl, Tag
from localpuppet.node.releases.source import ReleaseSource
from tests.node import make
from tests.rigs.forge import Forge, Repo
from tests.rigs.signing import Signing, sign_tag


@pytest.fixture
def fetcher(tmp_path: Path) -> Fetcher:
    return make.fetcher(tmp_path / "state")


def test_different_commits_of_a_tag_on_other_nodes_are_reported() -> None:
    app = ReleasePath("web/tags/r1")
    pin = make.pin("web", "r1", commit="a" * 40)
    assert compare_commits(app, pin, {}) == ""
    assert compare_commits(app, pin, {"a" * 40: ["a1"]}) == ""
    other = {"b" * 40: ["b2", "b1"], "c" * 40: ["c1"]}
    difference = "is aaaaaaaaaaaa here, but bbbbbbbbbbbb on b1 and 1 more; cccccccccccc on c1"
    warning = compare_commits(app, pin, {"a" * 40: ["a1"], **other})
    assert warning == f"warning: {app}: the tag r1 {difference}; as here on a1: the tag was moved"
    with pytest.raises(IntegrityError, match=difference):
        compare_commits(app, pin, other)


@pytest.fixture
def web(forge: Forge, signing: Signing) -> Repo:
    repo = forge.repo("web")
    repo.commit({"web/manifests/init.pp": "class web {}\n"})
    sign_tag(repo, "r1", signing)
    return repo


@pytest.fixture
def source(web: Repo, signing: Signing) -> ReleaseSource:
    return ReleaseSource(name="web", url=GitUrl(web.url), signers=signing.ssh_signers("ssh"))


def of_source(source: ReleaseSource) -> WantedTag:
    return WantedTag(url=source.url, tag=Tag("r1"), where="web/tags/r1", source=source)


def refused(fetcher: Fetcher, source: ReleaseSource) -> str:
    with pytest.raises(IntegrityError) as caught:
        fetcher.bring({"web": of_source(source)})
    return str(caught.value)


def test_the_tag_of_another_source_is_refused(fetcher: Fetcher, source: ReleaseSource) -> None:
    """The host of `shop` serves the same bytes with the same signature."""
    assert fetcher.bring({"web": of_source(source)})["web"].tag == "r1"
    shop = replace(source, name="shop")
    message = refused(fetcher, shop)
    assert "the signed tag is for the source web, not for shop" in message
    assert "is for the source web" in refused(fetcher, replace(shop, unnamed_tags=True))


def test_a_tag_without_a_source_is_accepted_only_with_unnamed_tags(
    fetcher: Fetcher, source: ReleaseSource, web: Repo, signing: Signing
) -> None:
    sign_tag(web, "r1", signing, message="release r1")
    message = refused(fetcher, source)
    assert "does not name its source: Localpuppet-Source: web" in message
    lenient = replace(source, unnamed_tags=True)
    pin = fetcher.bring({"web": of_source(lenient)})["web"]
    item = replace(of_source(source), pinned=pin, tree_sha256=pin.tree_sha256)
    with pytest.raises(IntegrityError, match="does not name"):
        fetcher.bring({"web": item})  # an accepted tag is refused after the setting changed


@pytest.mark.parametrize(
    "message",
    [
        "Localpuppet-Source: web\nLocalpuppet-Source: shop",
        "Localpuppet-Source: web\n\nLocalpuppet-Source: web",
        "Localpuppet-Source: Web",
        "Localpuppet-Source: ",
    ],
)
def test_a_tag_must_name_exactly_its_source(
    fetcher: Fetcher, source: ReleaseSource, web: Repo, signing: Signing, message: str
) -> None:
    sign_tag(web, "r1", signing, message=message)
    assert "not for web" in refused(fetcher, source)


def test_an_unsigned_tag_needs_no_source(fetcher: Fetcher, source: ReleaseSource) -> None:
    anybody = replace(source, name="shop", signers=None)
    assert fetcher.bring({"web": of_source(anybody)})["web"].tag == "r1"
