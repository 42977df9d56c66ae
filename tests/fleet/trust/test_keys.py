"""Key files: what is made, what is read, and what is refused."""

import os
import pwd
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from localpuppet.base.errors import IntegrityError, InvalidInputError, StateError
from localpuppet.base.formats.names import SignerName
from localpuppet.fleet.trust.key_files import (
    OwnKey,
    TrustedKeys,
    fingerprint,
    parse_public,
    public_pem,
    read_private,
)
from tests.doubles.certificates import Ca, pem, rsa_key, write
from tests.doubles.identities import ALICE, WEB01
from tests.rigs.node import completed

BLOCK = b"-----BEGIN %b KEY-----\n%b\n-----END %b KEY-----\n"


def new() -> Ed25519PublicKey:
    return Ed25519PrivateKey.generate().public_key()


@pytest.fixture
def trusted(tmp_path: Path) -> TrustedKeys:
    return TrustedKeys(tmp_path / "trusted")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    own = OwnKey(tmp_path / "state" / "keys" / "node.pem")
    with pytest.raises(InvalidInputError, match=r"this node has no key.*keys init"):
        own.load()
    before = os.umask(0)
    try:
        made = own.make()
    finally:
        os.umask(before)
    assert (mode(own.path.parent), mode(own.path)) == (0o700, 0o600)
    assert own.path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----"), "PKCS8"
    assert public_pem(own.load().public_key()) == public_pem(made.public_key())
    with pytest.raises(InvalidInputError, match=r"this node has a key already.*--replace"):
        own.make()
    assert public_pem(own.ensure().public_key()) == public_pem(made.public_key())
    replaced = own.make(replace=True)
    assert public_pem(replaced.public_key()) != public_pem(made.public_key())
    assert public_pem(own.load().public_key()) == public_pem(replaced.public_key())
    assert [path.name for path in own.path.parent.iterdir()] == ["node.pem"], "no traces"


def test_concurrent_calls_that_make_the_first_key_get_the_same(tmp_path: Path) -> None:
    own = OwnKey(tmp_path / "keys" / "node.pem")
    (tmp_path / "keys").mkdir(mode=0o700)
    with ThreadPoolExecutor(8) as pool:
        made = [future.result() for future in [pool.submit(own.ensure) for _ in range(8)]]
    assert len({public_pem(key.public_key()) for key in made}) == 1


@pytest.mark.parametrize("bad", [0o640, 0o604, 0o660, 0o606, 0o644, 0o610, 0o601])
def test_a_private_key_that_others_could_read_is_refused(tmp_path: Path, bad: int) -> None:
    own = OwnKey(tmp_path / "node.pem")
    own.make()
    own.path.chmod(bad)
    with pytest.raises(InvalidInputError, match=r"others|chmod"):
        own.load()
    with pytest.raises(InvalidInputError):
        own.ensure()


def test_a_credential_of_systemd_may_show_rights_of_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has an access list for the user of the unit, whose mask is shown there (Debian 14)."""
    path = write(tmp_path / "key.pem", pem(rsa_key()), mode=0o440)
    with pytest.raises(InvalidInputError, match="others can read"):
        read_private(path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_private(path) == pem(rsa_key())
    path.chmod(0o444)
    with pytest.raises(InvalidInputError, match="others can read"):
        read_private(path)


def test_puppet_s_own_key_may_be_its_users_and_no_others(tmp_path: Path) -> None:
    """Puppet gives the key of its certificate to its service user, 0640, in each run."""
    path = write(tmp_path / "key.pem", pem(rsa_key()), mode=0o640)
    puppet = pwd.getpwnam("puppet")
    os.chown(path, puppet.pw_uid, puppet.pw_gid)
    assert read_private(path, of_puppet=True) == pem(rsa_key())
    with pytest.raises(InvalidInputError):
        read_private(path)
    other = pwd.getpwnam("daemon")
    os.chown(path, puppet.pw_uid, other.pw_gid)
    with pytest.raises(InvalidInputError, match="others can read"):
        read_private(path, of_puppet=True)
    os.chown(path, other.pw_uid, puppet.pw_gid)
    with pytest.raises(InvalidInputError, match="writable by others"):
        read_private(path, of_puppet=True)
    os.chown(path, puppet.pw_uid, puppet.pw_gid)
    for bad in (0o644, 0o660):
        path.chmod(bad)
        with pytest.raises(InvalidInputError):
            read_private(path, of_puppet=True)


def private(key: Ed25519PrivateKey | Ed448PrivateKey, password: bytes = b"") -> bytes:
    lock = BestAvailableEncryption(password) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: b"", "not a private key"),
        (lambda: BLOCK % (b"PRIVATE", b"secret", b"PRIVATE"), "not a private key"),
        (lambda: public_pem(new()), "not a private key"),
        (lambda: pem(rsa_key()), "is not an Ed25519 key"),
        (lambda: private(Ed448PrivateKey.generate()), "is not an Ed25519 key"),
        (lambda: private(Ed25519PrivateKey.generate(), b"secret"), "has a password"),
    ],
)
def test_other_keys_are_refused(tmp_path: Path, content: Callable[[], bytes], message: str) -> None:
    own = OwnKey(write(tmp_path / "node.pem", content(), mode=0o600))
    with pytest.raises(InvalidInputError, match=message) as caught:
        own.load()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda pem: pem,
        lambda pem: pem.replace(b"\n", b"\r\n"),
        lambda pem: pem + b"\n",
        lambda pem: pem.replace(b"\n", b"\n", 1)[:60] + b"\n" + pem[60:],
    ],
)
def test_keys_of_openssl_are_read_in_each_form_of_their_lines(
    change: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    made = completed("openssl", "genpkey", "-algorithm", "ed25519").out.encode()
    key = load_pem_private_key(made, password=None)
    assert isinstance(key, Ed25519PrivateKey)
    own = OwnKey(write(tmp_path / "node.pem", change(made), mode=0o600))
    assert own.load().private_bytes_raw() == key.private_bytes_raw()
    public = parse_public(change(public_pem(key.public_key())), where="x")
    assert public.public_bytes_raw() == key.public_key().public_bytes_raw()


def test_fingerprints_are_those_of_openssh(tmp_path: Path) -> None:
    for key in (new(), rsa_key().public_key(), Ca().key.public_key()):
        line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        path = write(tmp_path / "key.pub", line + b"\n")
        assert completed("ssh-keygen", "-lf", path).out.split()[1] == fingerprint(key)


def test_public_keys_with_comments_before_them() -> None:
    key = new()
    text = b"# web01.example.com SHA256:x\n\n" + public_pem(key)
    assert public_pem(parse_public(text, where="f")) == public_pem(key)
    windows = public_pem(key).replace(b"\n", b"\r\n")
    assert public_pem(parse_public(windows, where="f")) == public_pem(key)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: b"", "one PEM block is needed"),
        (lambda: private(Ed25519PrivateKey.generate()), "private key, which must stay on its node"),
        (lambda: public_pem(new()) * 2, "one PEM block"),
        (lambda: public_pem(new()) + b"more", "one PEM block"),
        (lambda: b"more\n" + public_pem(new()), "one PEM block"),
        (lambda: public_pem(new())[:40], "one PEM block"),
        (lambda: public_pem(rsa_key().public_key()), "not an Ed25519 key"),
        (lambda: public_pem(Ed448PrivateKey.generate().public_key()), "not an Ed25519 key"),
        (lambda: Ca().text, "is a certificate.*identity.ca"),
        (lambda: new().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH), "one PEM block"),
        (lambda: BLOCK % (b"PUBLIC", b"AAAA", b"PUBLIC"), "not a readable public key"),
        (lambda: b"\x00\xff" * 100, "one PEM block"),
    ],
)
def test_invalid_public_keys_are_refused(content: Callable[[], bytes], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse_public(content(), where="f")


def test_a_key_is_pinned_and_another_does_not_take_its_place(trusted: TrustedKeys) -> None:
    first, second = new(), new()
    assert trusted.get(ALICE) is None
    assert trusted.names() == []
    assert trusted.pin(ALICE, first)
    assert not trusted.pin(ALICE, first), "nothing to do"
    assert (mode(trusted.directory), mode(trusted.directory / "alice.pem")) == (0o755, 0o644)
    with pytest.raises(IntegrityError, match=r"another key of alice is pinned.*--rep") as caught:
        trusted.pin(ALICE, second)
    assert fingerprint(first) in str(caught.value)
    assert fingerprint(second) in str(caught.value)
    assert trusted.pin(ALICE, second, replace=True)
    assert public_pem(trusted.get(ALICE) or first) == public_pem(second)
    trusted.pin(WEB01, first)
    assert trusted.names() == [ALICE, WEB01]
    trusted.remove(ALICE)
    assert trusted.get(ALICE) is None
    with pytest.raises(InvalidInputError, match="no key of alice is pinned"):
        trusted.remove(ALICE)


def test_a_change_on_the_disk_is_seen(trusted: TrustedKeys, tmp_path: Path) -> None:
    first, second = new(), new()
    trusted.pin(ALICE, first)
    assert trusted.get(ALICE) is trusted.get(ALICE), "read once"
    path = trusted.directory / "alice.pem"
    write(path, public_pem(second))  # in place, as an editor may do
    assert public_pem(trusted.get(ALICE) or first) == public_pem(second)
    path.unlink()
    assert trusted.get(ALICE) is None


def test_files_of_others_and_broken_links_are_not_trusted(trusted: TrustedKeys) -> None:
    trusted.pin(ALICE, new())
    path = trusted.directory / "alice.pem"
    path.chmod(0o666)
    with pytest.raises(InvalidInputError, match="writable by others"):
        trusted.get(ALICE)
    path.chmod(0o644)
    assert trusted.get(ALICE) is not None
    trusted.directory.chmod(0o777)
    with pytest.raises(InvalidInputError, match="writable by others"):
        trusted.get(ALICE)
    trusted.directory.chmod(0o755)
    path.unlink()
    path.symlink_to("elsewhere.pem")  # a certificate of the CA would do in its place
    with pytest.raises(InvalidInputError, match=r"alice\.pem: is a broken link"):
        trusted.get(ALICE)


def test_files_that_no_signer_could_mean_are_named(trusted: TrustedKeys) -> None:
    trusted.pin(ALICE, new())
    for name in ("README", ".alice.pem.4711", ".half.pem"):
        (trusted.directory / name).write_text("x")
    assert trusted.names() == [ALICE]
    (trusted.directory / "Web01.pem").write_text("x")
    with pytest.raises(InvalidInputError, match=r"trusted: 'Web01' is not a signer's name"):
        trusted.names()
    with pytest.raises(InvalidInputError, match="Not a directory"):
        TrustedKeys(trusted.directory / "README").names()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "-a", "A", "ä", "a b", "a\n", "a*"])
def test_names_that_are_no_names(name: str) -> None:
    with pytest.raises(InvalidInputError, match="not a signer's name"):
        SignerName.parse(name)


def test_caller_ids() -> None:
    assert SignerName.parse("alice.mcollective").caller == "choria=alice.mcollective"
    assert SignerName.parse_caller("choria=alice") == ALICE
    for text in ("alice", "choria=", "choria=choria=alice", "cert=alice", "Choria=alice"):
        with pytest.raises(InvalidInputError):
            SignerName.parse_caller(text)


def test_a_failed_write_is_an_error_in_a_single_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StateError):
        OwnKey(tmp_path / "file" / "node.pem").make()
    with pytest.raises(StateError):
        TrustedKeys(tmp_path / "file" / "trusted").pin(ALICE, new())
