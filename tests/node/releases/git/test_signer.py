"""The signer of a tag, and signers that are the same person."""

import base64
import hashlib

from localpuppet.node.releases.git.signatures import (
    TagSigner,
    openpgp_names,
    openpgp_signer,
    people,
    ssh_names,
    ssh_signer,
)

KEYS = {name: base64.b64encode(b"\0\0\0\x0bssh-ed25519" + name.encode()).decode() for name in "ab"}
ONE, TWO = "A" * 40, "B" * 40


def signer(name: str, *marks: str) -> TagSigner:
    return TagSigner(name=name, marks=frozenset({name, *marks}))


def fingerprint(key: str) -> str:
    digest = hashlib.sha256(base64.b64decode(KEYS[key])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def test_people_are_counted_instead_of_signatures() -> None:
    assert people([]) == []
    assert people([signer("alice", "k1"), signer("bob", "k2")]) == ["alice", "bob"]
    assert people([signer("alice", "k1"), signer("alice", "k1")]) == ["alice"]
    assert people([signer("alice", "k1"), signer("alice", "k2")]) == ["alice"], "two keys"
    assert people([signer("alice", "k1"), signer("bob", "k1")]) == ["alice"], "one key"


def test_a_signer_with_marks_of_two_people_makes_them_one_person() -> None:
    joined = [signer("alice", "k1"), signer("bob", "k2"), signer("al", "k1", "k2"), signer("eve")]
    assert people(joined) == ["alice", "eve"]


def test_a_key_has_the_names_of_all_its_lines() -> None:
    allowed = (
        "# alice@old ssh-ed25519 AAAAnot\n"
        f'alice@x,alice@y namespaces="git" ssh-ed25519 {KEYS["a"]} comment\n'
        "\n"
        f'"bob b"@z ssh-ed25519 {KEYS["b"]}\n'
        f"al@w ssh-ed25519 {KEYS['a']}\n"
        "broken ssh-ed25519 AAAA!\n"
    )
    names = ssh_names(allowed)
    assert names[fingerprint("a")] == {"alice@x", "alice@y", "al@w"}
    assert names[fingerprint("b")] == {"bob b@z"}
    assert len(names) == 2
    good = f'Good "git" signature for alice@y with ED25519 key {fingerprint("a")}\n'
    found = ssh_signer(good, names)
    assert found is not None
    assert (found.name, found.marks) == ("alice@y", names[fingerprint("a")] | {fingerprint("a")})


def test_output_without_exactly_one_known_signer_names_no_signer() -> None:
    unknown = 'Good "git" signature with ED25519 key SHA256:abc\n'
    twice = 'Good "git" signature for a with RSA key SHA256:a\n' * 2
    for output in ("", unknown, twice):
        assert ssh_signer(output, {}) is None
    good = f"[GNUPG:] GOODSIG 0123 Alice\n[GNUPG:] VALIDSIG {ONE} 1 1 0 4 0 22 8 00 {TWO}\n"
    for output in ("", good.partition("\n")[0], good.partition("\n")[2], good + good):
        assert openpgp_signer(output, {}) is None


def test_an_openpgp_key_has_the_marks_of_its_primary_key_and_its_addresses() -> None:
    listing = (
        "tru::1:1:0:3:1:5\n"
        f"pub:u:255:22:0123:1:::u:::scESC:::::ed25519:::0:\nfpr:::::::::{ONE}:\n"
        "uid:u::::1::HASH::Alice \\x3a A <Alice@x>::::::::::0:\n"
        "uid:r::::1::HASH::alice@y::::::::::0:\n"
        f"sub:u:255:22:4567:1::::::s:::::ed25519::\nfpr:::::::::{TWO}:\n"
    )
    names = openpgp_names(listing)
    assert names == {ONE: {"alice@x", "alice@y"}}
    good = "[GNUPG:] GOODSIG 4567 Alice : A <Alice@x>\n"
    found = openpgp_signer(f"{good}[GNUPG:] VALIDSIG {TWO} 1 1 0 4 0 22 8 00 {ONE}", names)
    assert found is not None
    assert found.name == "Alice : A <Alice@x>"
    assert found.marks == {ONE, "alice@x", "alice@y"}
