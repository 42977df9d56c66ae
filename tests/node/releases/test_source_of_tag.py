"""A signed tag names its source: a node refuses the tag of another source."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError
from localpuppet.node.releases.fetch import Fetcher, WantedTag
from localpuppet.node.releases.git.git_names import GitUrl, Tag
from localpuppet.node.releases.git.mirrors import Git
from localpuppet.node.releases.git.program import GitProgram
from localpuppet.node.releases.source import ReleaseSource
from localpuppet.node.releases.store import Store
from tests.rigs.forge import Forge, Repo
from tests.rigs.signing import Signing, sign_tag


@pytest.fixture
def signing(tmp_path: Path) -> Signing:
    home = tmp_path / "home"
    home.mkdir()
    made = Signing(home)
    made.ssh_key("ssh")
    return made


@pytest.fixture
def fetcher(tmp_path: Path) -> Fetcher:
    git = Git(tmp_path / "state/mirrors", GitProgram(env=os.environ, allow_file=True, timeout=60))
    return Fetcher(repository=git, store=Store(tmp_path / "state"))


@pytest.fixture
def web(forge: Forge, signing: Signing) -> Repo:
    repo = forge.repo("web")
    repo.commit({"web/manifests/init.pp": "class web {}\n"})
    sign_tag(repo, "r1", signing)
    return repo


@pytest.fixture
def source(web: Repo, signing: Signing) -> ReleaseSource:
    return ReleaseSource(name="web", url=GitUrl(web.url), signers=signing.ssh_signers("ssh"))


def wanted(source: ReleaseSource) -> WantedTag:
    return WantedTag(url=source.url, tag=Tag("r1"), where="web/tags/r1", source=source)


def refused(fetcher: Fetcher, source: ReleaseSource) -> str:
    with pytest.raises(IntegrityError) as caught:
        fetcher.bring({"web": wanted(source)})
    return str(caught.value)


def test_a_tag_of_the_source_is_accepted(fetcher: Fetcher, source: ReleaseSource) -> None:
    assert fetcher.bring({"web": wanted(source)})["web"].tag == "r1"


def test_the_tag_of_another_source_is_refused_for_any_signer(
    fetcher: Fetcher, source: ReleaseSource
) -> None:
    """The host of `shop` serves the same bytes with the same signature."""
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
    pin = fetcher.bring({"web": wanted(lenient)})["web"]
    item = replace(wanted(source), pinned=pin, tree_sha256=pin.tree_sha256)
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


def test_without_required_signatures_a_tag_needs_no_source(
    fetcher: Fetcher, source: ReleaseSource
) -> None:
    anybody = replace(source, name="shop", signers=None)
    assert fetcher.bring({"web": wanted(anybody)})["web"].tag == "r1"
