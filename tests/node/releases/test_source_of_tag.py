"""A signed tag says which source it is for: one of another repository does not do."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError
from localpuppet.node.releases.fetch import Fetcher, WantedTag
from localpuppet.node.releases.git.mirrors import Git
from localpuppet.node.releases.git.names import GitUrl, Tag
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


def test_a_tag_of_the_source_is_taken(fetcher: Fetcher, source: ReleaseSource) -> None:
    assert fetcher.bring({"web": wanted(source)})["web"].tag == "r1"


def test_the_tag_of_another_source_is_refused_whoever_signed_it(
    fetcher: Fetcher, source: ReleaseSource
) -> None:
    """The same bytes, the same signature, served by the host of `shop`."""
    shop = replace(source, name="shop")
    said = refused(fetcher, shop)
    assert "the signed tag is for the source web, not for shop" in said
    assert "is for the source web" in refused(fetcher, replace(shop, unnamed_tags=True))


def test_an_older_tag_is_let_in_where_the_source_says_so(
    fetcher: Fetcher, source: ReleaseSource, web: Repo, signing: Signing
) -> None:
    sign_tag(web, "r1", signing, message="release r1")
    said = refused(fetcher, source)
    assert "does not name its source: Localpuppet-Source: web" in said
    lenient = replace(source, unnamed_tags=True)
    pin = fetcher.bring({"web": wanted(lenient)})["web"]
    item = replace(wanted(source), pinned=pin, tree_sha256=pin.tree_sha256)
    with pytest.raises(IntegrityError, match="does not name"):
        fetcher.bring({"web": item})  # what was let in once does not stay after the setting went


@pytest.mark.parametrize(
    "message",
    [
        "Localpuppet-Source: web\nLocalpuppet-Source: shop",
        "Localpuppet-Source: web\n\nLocalpuppet-Source: web",
        "Localpuppet-Source: Web",
        "Localpuppet-Source: ",
    ],
)
def test_only_one_name_and_exactly_the_one_counts(
    fetcher: Fetcher, source: ReleaseSource, web: Repo, signing: Signing, message: str
) -> None:
    sign_tag(web, "r1", signing, message=message)
    assert "not for web" in refused(fetcher, source)


def test_a_source_that_asks_for_no_signature_asks_for_no_name(
    fetcher: Fetcher, source: ReleaseSource
) -> None:
    anybody = replace(source, name="shop", signers=None)
    assert fetcher.bring({"web": wanted(anybody)})["web"].tag == "r1"
