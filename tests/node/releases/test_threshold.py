"""`signatures: 2` of a source: two people must have signed a tag."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError, UnavailableError
from localpuppet.node.releases.fetch import WantedTag
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.git.git_names import GitUrl, Tag
from localpuppet.node.releases.limits import MAX_COUNTERSIGNATURES
from localpuppet.node.releases.source import ReleaseSource
from tests.node import make
from tests.rigs.forge import Forge, Repo
from tests.rigs.signing import (
    Signing,
    countersign,
    endorsement,
    payload,
    put_countersignature,
    put_tag,
    sign_tag,
)

KEYS = ("alice", "alice2", "bob", "eve")


@pytest.fixture(scope="module")
def signing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signing]:
    """Keys of alice (two), bob and eve, of both kinds."""
    made = Signing(tmp_path_factory.mktemp("home"))
    for name in KEYS:
        made.ssh_key(name)
    for name in ("alice", "bob", "eve"):
        made.pgp_key(name)
    made.pgp_key("alice2", called="Alice at home <alice@example.net>")
    yield made
    made.close()


@pytest.fixture
def web(forge: Forge, signing: Signing) -> Repo:
    """A repository with the tag r1, signed by alice."""
    repo = forge.repo("web")
    repo.commit({"web/manifests/init.pp": "class web {}\n"})
    sign_tag(repo, "r1", signing, key="alice")
    return repo


class Place:
    """A node that fetches r1 of a source."""

    def __init__(self, state: Path, web: Repo) -> None:
        self.web = web
        self.fetcher = make.fetcher(state)

    def bring(self, source: ReleaseSource, pinned: Pin | None = None) -> Pin:
        item = WantedTag(url=source.url, tag=Tag("r1"), where="web/tags/r1", source=source)
        if pinned is not None:
            item = replace(item, pinned=pinned, tree_sha256=pinned.tree_sha256)
        return self.fetcher.bring({"web": item})["web"]

    def refused(self, source: ReleaseSource, pinned: Pin | None = None) -> str:
        with pytest.raises(IntegrityError) as caught:
            self.bring(source, pinned)
        return str(caught.value)


@pytest.fixture
def place(tmp_path: Path, web: Repo) -> Place:
    return Place(tmp_path / "state", web)


def two(web: Repo, signers: Path, signatures: int = 2) -> ReleaseSource:
    return ReleaseSource(name="web", url=GitUrl(web.url), signers=signers, signatures=signatures)


def trusted(signing: Signing, *names: str, called: Mapping[str, str] | None = None) -> Path:
    return signing.ssh_signers(*names, called={"alice2": "alice@example.net"} | dict(called or {}))


@pytest.fixture
def source(web: Repo, signing: Signing) -> ReleaseSource:
    """A source that requires two people, with alice, who has two keys, and bob as signers."""
    return two(web, trusted(signing, "alice", "alice2", "bob"))


def test_one_signature_is_refused_and_two_people_are_accepted(
    place: Place, source: ReleaseSource, signing: Signing
) -> None:
    message = place.refused(source)
    assert "web requires 2 signatures" in message
    assert "the tag r1 is signed by alice@example.net: 1 more must sign" in message
    assert "'localpuppet release sign DIR r1'" in message
    assert "2 more must sign" in place.refused(replace(source, signatures=3))
    countersign(place.web, "r1", signing, "bob")
    assert place.bring(source).tag == "r1", "the node fetches new countersignatures of a known tag"
    assert "1 more must sign" in place.refused(replace(source, signatures=3))


def test_a_person_counts_once_with_any_number_of_keys_and_signatures(
    place: Place, source: ReleaseSource, signing: Signing
) -> None:
    for key in ("alice", "alice", "alice2"):
        countersign(place.web, "r1", signing, key)
    assert "is signed by alice@example.net: 1 more must sign" in place.refused(source)
    two_names = trusted(signing, "alice", "alice2", called={"alice2": "a@home,alice@example.net"})
    assert "1 more" in place.refused(replace(source, signers=two_names))


def test_openpgp_signatures_are_counted_by_the_same_rule(place: Place, signing: Signing) -> None:
    text = payload(place.web, "r1", "release r1\n\nLocalpuppet-Source: web")
    put_tag(place.web, "r1", text + signing.pgp_sign("alice", text))
    source = two(place.web, signing.pgp_signers("alice", "bob"))  # all keys of both addresses
    keys = signing.run("gpg", "--with-colons", "--list-keys", "alice@example.net").decode()
    prints = [line.split(":")[9] for line in keys.splitlines() if line.startswith("fpr:")]
    assert len(prints) == 2, "alice has two keys"
    again = endorsement(place.web, "r1")
    for key in prints:
        sign = ["gpg", "--batch", "--armor", "--detach-sign", "--local-user", f"{key}!"]
        put_countersignature(place.web, "r1", again + signing.run(*sign, stdin=again))
    assert "1 more must sign" in place.refused(source)
    put_countersignature(place.web, "r1", again + signing.pgp_sign("bob", again))
    assert place.bring(source).tag == "r1"


@pytest.mark.parametrize(
    ("lies", "why"),
    [
        ({"of": "other tag"}, "belongs to another tag object"),
        ({"of": "commit"}, "belongs to another tag object"),
        ({"name": "signatures/r2"}, "does not have the name of a countersignature of this tag"),
        ({"name": "r1"}, "does not have the name of a countersignature of this tag"),
        ({"source": "shop"}, "does not name the source web"),
        ({"source": "web\nLocalpuppet-Source: shop"}, "does not name the source"),
    ],
)
def test_a_signature_of_another_object_does_not_count(
    place: Place, source: ReleaseSource, signing: Signing, lies: dict[str, str], why: str
) -> None:
    others = {"commit": ("commit", place.web.git("rev-parse", "HEAD"))}
    others["other tag"] = ("tag", sign_tag(place.web, "r2", signing, key="alice"))
    if "of" in lies:
        kind, name = others[lies["of"]]
        lies = {"of": name, "kind": kind}
    made = countersign(place.web, "r1", signing, "bob", **lies)
    message = place.refused(source)
    assert "1 more must sign; does not count: " + made[:12] in message
    assert why in message


def test_refs_of_a_stranger_do_not_count_and_do_not_prevent_other_signatures(
    place: Place, source: ReleaseSource, signing: Signing
) -> None:
    countersign(place.web, "r1", signing, "eve")
    text = endorsement(place.web, "r1")
    signed = text + signing.ssh_sign("bob", text)
    for body in (text, signed + b"more\n", signed.replace(b"signs r1", b"signs r9")):
        put_countersignature(place.web, "r1", body)
    blob = place.web.git("rev-parse", "HEAD:web/manifests/init.pp")
    place.web.git("update-ref", f"refs/signatures/r1/{blob}", blob)
    place.web.git("update-ref", "refs/signatures/r1/called-otherwise", blob)
    message = place.refused(source)
    assert "(and 4 more)" in message
    put_countersignature(place.web, "r1", signed)
    assert place.bring(source).tag == "r1"


def test_a_signature_of_the_other_kind_does_not_count(
    place: Place, source: ReleaseSource, signing: Signing
) -> None:
    text = endorsement(place.web, "r1")
    put_countersignature(place.web, "r1", text + signing.pgp_sign("bob", text))
    assert "is signed with OpenPGP, and the source's signers are" in place.refused(source)


def test_the_signature_of_the_tag_must_be_trusted_in_addition_to_countersignatures(
    place: Place, source: ReleaseSource, signing: Signing
) -> None:
    sign_tag(place.web, "r1", signing, key="eve")
    for key in ("alice", "bob"):
        countersign(place.web, "r1", signing, key)
    assert "has no valid signature by a trusted key" in place.refused(source)


def test_a_removed_signer_or_a_higher_number_requires_a_new_verification(
    place: Place, source: ReleaseSource, signing: Signing
) -> None:
    """Also on a node with a stored verification, which includes keys and number."""
    countersign(place.web, "r1", signing, "bob")
    alone = replace(source, signatures=1)
    pin = place.bring(alone)
    assert place.bring(source, pin) == pin
    assert "1 more must sign" in place.refused(replace(source, signatures=3), pin)
    removed = two(place.web, trusted(signing, "alice", "alice2", "eve"))
    message = place.refused(removed, pin)
    assert "is signed by alice@example.net: 1 more must sign; does not count" in message
    assert "has no valid signature by a trusted key" in message
    countersign(place.web, "r1", signing, "eve")
    assert place.bring(removed, pin) == pin


def test_after_a_change_of_signers_a_tag_is_verified_from_the_mirror(
    place: Place, source: ReleaseSource, signing: Signing
) -> None:
    countersign(place.web, "r1", signing, "bob")
    pin = place.bring(source)
    shutil.rmtree(place.web.path)
    assert place.bring(two(place.web, trusted(signing, "alice", "bob", "eve")), pin) == pin
    with pytest.raises(UnavailableError):
        place.bring(two(place.web, trusted(signing, "alice", "eve")), pin)


def test_too_many_countersignatures_are_refused(
    place: Place, source: ReleaseSource, signing: Signing
) -> None:
    genuine = countersign(place.web, "r1", signing, "bob")
    body = place.web.git("cat-file", "tag", genuine)
    for number in range(MAX_COUNTERSIGNATURES):
        put_countersignature(place.web, "r1", f"{body}\n{number}\n".encode())
    assert "has more than 64 countersignatures" in place.refused(source)
