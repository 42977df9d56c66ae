"""Only one signature counts: the block at the end of the tag, by a pinned key."""

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.node.releases.git import signatures
from localpuppet.node.releases.git.program import GitProgram
from localpuppet.node.releases.git.signatures import (
    TagSigner,
    openpgp_names,
    openpgp_signer,
    people,
    ssh_names,
    ssh_signer,
)
from tests.rigs.forge import Forge, Repo
from tests.rigs.signing import Signing, payload, put_tag

WORDS = "release r1\n\nsigned: BEGIN SSH SIGNATURE"
BLOCK = b"-----BEGIN %s-----\nbm90aGluZw==\n-----END %s-----\n"


@pytest.fixture(scope="module")
def signing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signing]:
    """Keys of the release (`ssh`, `pgp`) and other keys; root's keyring has both OpenPGP keys."""
    made = Signing(tmp_path_factory.mktemp("home"))
    for name in ("ssh", "other-ssh"):
        made.ssh_key(name)
    for name in ("pgp", "other-pgp"):
        made.pgp_key(name)
    yield made
    made.close()


@pytest.fixture
def repo(forge: Forge) -> Repo:
    made = forge.repo("up")
    made.commit({"init.pp": "class up {}\n"})
    return made


def verify(signing: Signing, repo: Repo, body: bytes, signers: Path, **env: str) -> None:
    found = put_tag(repo, "r1", body)
    program = GitProgram(env={**signing.env, **env}, allow_file=True, timeout=60)
    with signatures.pinned(program, signers) as keys:
        keys.verify(repo.path / ".git", found, where="up tag r1")


def refused(signing: Signing, repo: Repo, body: bytes, signers: Path, **env: str) -> str:
    with pytest.raises(IntegrityError) as caught:
        verify(signing, repo, body, signers, **env)
    return str(caught.value)


def test_only_a_signature_of_the_pinned_key_is_accepted(signing: Signing, repo: Repo) -> None:
    text = payload(repo, "r1", WORDS)
    verify(signing, repo, text + signing.ssh_sign("ssh", text), signing.ssh_signers("ssh"))
    verify(signing, repo, text + signing.pgp_sign("pgp", text), signing.pgp_signers("pgp"))
    refused(signing, repo, text + signing.ssh_sign("other-ssh", text), signing.ssh_signers("ssh"))
    refused(signing, repo, text + signing.pgp_sign("other-pgp", text), signing.pgp_signers("pgp"))


def test_a_key_in_the_keyring_of_root_does_not_count(signing: Signing, repo: Repo) -> None:
    text = payload(repo, "r1", WORDS)
    problem = refused(
        signing, repo, text + signing.pgp_sign("pgp", text), signing.ssh_signers("ssh")
    )
    assert "is signed with OpenPGP, and the source's signers are OpenSSH keys" in problem


def test_a_signers_file_that_others_can_write_is_refused(signing: Signing, repo: Repo) -> None:
    text, signers = payload(repo, "r1", WORDS), signing.ssh_signers("ssh")
    signers.chmod(0o666)
    with pytest.raises(InvalidInputError, match=f"{signers}: is writable by others"):
        verify(signing, repo, text + signing.ssh_sign("ssh", text), signers)
    signers.chmod(0o644)


def test_text_in_a_message_is_not_a_signature(signing: Signing, repo: Repo) -> None:
    for message in (WORDS, "-----BEGIN SSH SIGNATURE----", " -----BEGIN SSH SIGNATURE-----"):
        problem = refused(signing, repo, payload(repo, "r1", message), signing.ssh_signers("ssh"))
        assert "is not signed" in problem


def test_two_signatures_by_any_keys_are_refused(signing: Signing, repo: Repo) -> None:
    text = payload(repo, "r1", "release r1")
    ssh, pgp = signing.ssh_sign("ssh", text), signing.pgp_sign("pgp", text)
    with_ssh, with_pgp = text + ssh, text + pgp
    others = [
        with_ssh + signing.pgp_sign("pgp", with_ssh),
        with_ssh + signing.ssh_sign("other-ssh", with_ssh),
        with_pgp + signing.ssh_sign("ssh", with_pgp),
        with_ssh + pgp,
        with_ssh + ssh,
    ]
    for body in others:
        problem = refused(signing, repo, body, signing.ssh_signers("ssh"))
        assert "has more than one signature" in problem
    problem = refused(signing, repo, with_ssh + pgp, signing.pgp_signers("pgp"))
    assert "has more than one signature" in problem


def test_text_after_the_signature_is_refused(signing: Signing, repo: Repo) -> None:
    text = payload(repo, "r1", "release r1")
    signed = text + signing.ssh_sign("ssh", text)
    for tail in (b"Localpuppet-Source: other\n", b"\nmore\n", BLOCK % (b"CERT", b"CERT")):
        problem = refused(signing, repo, signed + tail, signing.ssh_signers("ssh"))
        assert "text that the signature does not cover" in problem
    cut = signed.removesuffix(b"-----END SSH SIGNATURE-----\n")
    assert "is cut off" in refused(signing, repo, cut, signing.ssh_signers("ssh"))


def test_a_signature_in_the_header_is_refused(signing: Signing, repo: Repo) -> None:
    text = payload(repo, "r1", "release r1")
    head, _, message = text.partition(b"\n\n")
    for body in (
        head + b"\n" + signing.ssh_sign("ssh", head + b"\n") + b"\n" + message,
        head
        + b"\ngpgsig "
        + signing.ssh_sign("ssh", text).replace(b"\n", b"\n ")
        + b"\n\n"
        + message,
    ):
        done = put_raw(repo, body)
        program = GitProgram(env=signing.env, allow_file=True, timeout=60)
        signers = signing.ssh_signers("ssh")
        with signatures.pinned(program, signers) as keys, pytest.raises(IntegrityError):
            keys.verify(repo.path / ".git", done, where="t")


def put_raw(repo: Repo, body: bytes) -> str:
    """Write a tag object that git would not make."""
    file = repo.path.parent / "raw"
    file.write_bytes(body)
    return repo.git("hash-object", "-t", "tag", "-w", "--literally", str(file))


def test_a_signed_commit_does_not_sign_its_tag(signing: Signing, repo: Repo) -> None:
    repo.git(
        *["-c", "gpg.format=ssh", "-c", f"user.signingkey={signing.home}/ssh"],
        *["commit", "-q", "--allow-empty", "-S", "-m", "signed"],
    )
    assert "BEGIN SSH SIGNATURE" in repo.git("cat-file", "commit", "HEAD")
    problem = refused(signing, repo, payload(repo, "r1", "r1"), signing.ssh_signers("ssh"))
    assert "is not signed" in problem


@pytest.mark.parametrize("kind", [b"SIGNED MESSAGE", b"PGP MESSAGE"])
def test_other_kinds_of_signatures_are_refused_even_if_the_gpg_of_root_trusts_them(
    signing: Signing, repo: Repo, tmp_path: Path, kind: bytes
) -> None:
    for name in ("gpgsm", "gpg"):
        credulous = tmp_path / name
        credulous.write_text(
            "#!/bin/sh\ncat >/dev/null\n"
            "echo '[GNUPG:] NEWSIG'\necho '[GNUPG:] GOODSIG 0123456789ABCDEF anybody'\n"
            "echo '[GNUPG:] TRUST_ULTIMATE'\n"
        )
        credulous.chmod(0o755)
    path = f"{tmp_path}:{signing.env['PATH']}"
    body = payload(repo, "r1", WORDS) + BLOCK % (kind, kind)
    for signers in (signing.ssh_signers("ssh"), signing.pgp_signers("pgp")):
        problem = refused(signing, repo, body, signers, PATH=path)
        assert "signers are" in problem


def test_the_home_of_the_verifying_user_does_not_matter(signing: Signing, repo: Repo) -> None:
    """Neither a keyring nor a configuration below HOME or GNUPGHOME adds trusted keys."""
    text = payload(repo, "r1", "release r1")
    body = text + signing.pgp_sign("other-pgp", text)
    home = str(signing.home / ".gnupg")
    refused(signing, repo, body, signing.pgp_signers("pgp"), GNUPGHOME=home)
    verify(signing, repo, body, signing.pgp_signers("other-pgp"), HOME="/nonexistent")


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
    joined = [signer("alice", "k1"), signer("bob", "k2"), signer("al", "k1", "k2"), signer("eve")]
    assert people(joined) == ["alice", "eve"], "a signer with marks of two people"


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
