"""`signatures: 2` of a source: two people must have signed a tag."""

import shutil
from collections.abc import Iterator
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


class Place:
    """A node that fetches r1 of a source, which alice (with two keys) and bob must have signed."""

    def __init__(self, state: Path, web: Repo, signing: Signing) -> None:
        self.web = web
        self.signing = signing
        self.fetcher = make.fetcher(state)
        self.source = self.trusting("alice", "alice2", "bob")

    def trusting(self, *names: str, alice2: str = "alice@example.net") -> ReleaseSource:
        """Return a source that requires two of these signers."""
        signers = self.signing.ssh_signers(*names, called={"alice2": alice2})
        return self.signed_by(signers)

    def signed_by(self, signers: Path) -> ReleaseSource:
        return ReleaseSource(name="web", url=GitUrl(self.web.url), signers=signers, signatures=2)

    def countersign(self, key: str, **lies: str) -> str:
        return countersign(self.web, "r1", self.signing, key, **lies)

    def bring(self, source: ReleaseSource | None = None, pinned: Pin | None = None) -> Pin:
        source = source or self.source
        item = WantedTag(url=source.url, tag=Tag("r1"), where="web/tags/r1", source=source)
        if pinned is not None:
            item = replace(item, pinned=pinned, tree_sha256=pinned.tree_sha256)
        return self.fetcher.bring({"web": item})["web"]

    def refused(self, source: ReleaseSource | None = None, pinned: Pin | None = None) -> str:
        with pytest.raises(IntegrityError) as caught:
            self.bring(source, pinned)
        return str(caught.value)


@pytest.fixture
def place(tmp_path: Path, forge: Forge, signing: Signing) -> Place:
    """The node and a repository with the tag r1, signed by alice."""
    web = forge.repo("web")
    web.commit({"web/manifests/init.pp": "class web {}\n"})
    sign_tag(web, "r1", signing, key="alice")
    return Place(tmp_path / "state", web, signing)


def test_one_signature_is_refused_and_two_people_are_accepted(place: Place) -> None:
    message = place.refused()
    assert "web requires 2 signatures" in message
    assert "the tag r1 is signed by alice@example.net: 1 more must sign" in message
    assert "'localpuppet release sign DIR r1'" in message
    assert "2 more must sign" in place.refused(replace(place.source, signatures=3))
    place.countersign("bob")
    assert place.bring().tag == "r1", "the node fetches new countersignatures of a known tag"
    assert "1 more must sign" in place.refused(replace(place.source, signatures=3))


def test_a_person_counts_once_with_any_number_of_keys_and_signatures(place: Place) -> None:
    for key in ("alice", "alice", "alice2"):
        place.countersign(key)
    assert "is signed by alice@example.net: 1 more must sign" in place.refused()
    two_names = place.trusting("alice", "alice2", alice2="a@home,alice@example.net")
    assert "1 more" in place.refused(two_names)


def test_openpgp_signatures_are_counted_by_the_same_rule(place: Place) -> None:
    text = payload(place.web, "r1", "release r1\n\nLocalpuppet-Source: web")
    put_tag(place.web, "r1", text + place.signing.pgp_sign("alice", text))
    place.source = place.signed_by(place.signing.pgp_signers("alice", "bob"))  # all their keys
    keys = place.signing.run("gpg", "--with-colons", "--list-keys", "alice@example.net").decode()
    prints = [line.split(":")[9] for line in keys.splitlines() if line.startswith("fpr:")]
    assert len(prints) == 2, "alice has two keys"
    again = endorsement(place.web, "r1")
    for key in prints:
        sign = ["gpg", "--batch", "--armor", "--detach-sign", "--local-user", f"{key}!"]
        put_countersignature(place.web, "r1", again + place.signing.run(*sign, stdin=again))
    assert "1 more must sign" in place.refused()
    put_countersignature(place.web, "r1", again + place.signing.pgp_sign("bob", again))
    assert place.bring().tag == "r1"


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
    place: Place, lies: dict[str, str], why: str
) -> None:
    others = {"commit": ("commit", place.web.git("rev-parse", "HEAD"))}
    others["other tag"] = ("tag", sign_tag(place.web, "r2", place.signing, key="alice"))
    if "of" in lies:
        kind, name = others[lies["of"]]
        lies = {"of": name, "kind": kind}
    made = place.countersign("bob", **lies)
    message = place.refused()
    assert "1 more must sign; does not count: " + made[:12] in message
    assert why in message


def test_refs_of_a_stranger_do_not_count_and_do_not_prevent_other_signatures(place: Place) -> None:
    place.countersign("eve")
    text = endorsement(place.web, "r1")
    signed = text + place.signing.ssh_sign("bob", text)
    for body in (text, signed + b"more\n", signed.replace(b"signs r1", b"signs r9")):
        put_countersignature(place.web, "r1", body)
    blob = place.web.git("rev-parse", "HEAD:web/manifests/init.pp")
    place.web.git("update-ref", f"refs/signatures/r1/{blob}", blob)
    place.web.git("update-ref", "refs/signatures/r1/called-otherwise", blob)
    message = place.refused()
    assert "(and 4 more)" in message
    put_countersignature(place.web, "r1", signed)
    assert place.bring().tag == "r1"


def test_the_signature_of_the_tag_must_be_trusted_in_addition_to_countersignatures(
    place: Place,
) -> None:
    sign_tag(place.web, "r1", place.signing, key="eve")
    for key in ("alice", "bob"):
        place.countersign(key)
    assert "has no valid signature by a trusted key" in place.refused()


def test_a_removed_signer_or_a_higher_number_requires_a_new_verification(place: Place) -> None:
    """Also on a node with a stored verification, which includes keys and number."""
    place.countersign("bob")
    alone = replace(place.source, signatures=1)
    pin = place.bring(alone)
    assert place.bring(pinned=pin) == pin
    assert "1 more must sign" in place.refused(replace(place.source, signatures=3), pin)
    removed = place.trusting("alice", "alice2", "eve")
    message = place.refused(removed, pin)
    assert "is signed by alice@example.net: 1 more must sign; does not count" in message
    assert "has no valid signature by a trusted key" in message
    place.countersign("eve")
    assert place.bring(removed, pin) == pin


def test_after_a_change_of_signers_a_tag_is_verified_from_the_mirror(place: Place) -> None:
    place.countersign("bob")
    pin = place.bring()
    shutil.rmtree(place.web.path)
    assert place.bring(place.trusting("alice", "bob", "eve"), pin) == pin
    with pytest.raises(UnavailableError):
        place.bring(place.trusting("alice", "eve"), pin)


def test_signatures_have_a_limit(place: Place) -> None:
    genuine = place.countersign("bob")
    body = place.web.git("cat-file", "tag", genuine)
    for number in range(MAX_COUNTERSIGNATURES):
        put_countersignature(place.web, "r1", f"{body}\n{number}\n".encode())
    assert "has more than 64 countersignatures" in place.refused()
