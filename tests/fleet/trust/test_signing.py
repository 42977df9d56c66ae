"""Signed messages, and the ways in which people have got around signatures."""

import hashlib
import hmac
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.fleet.bus.bus_limits import MAX_SIGNED_PAYLOAD, MAX_TOKEN
from localpuppet.fleet.trust.key_files import public_pem
from localpuppet.fleet.trust.signing import (
    MessageKind,
    MessageSigner,
    Signed,
    Verifier,
    certificate_end,
    claimed_payload,
    with_base64,
    without_base64,
)
from tests.doubles.certificates import DAY, NOW, Ca, pem, rsa_key
from tests.doubles.identities import (
    ALICE,
    WEB01,
    Person,
    decode,
    encode,
    forge,
    person,
    trusting,
    verifier,
)
from tests.doubles.ports import FakeClock
from tests.rigs.node import REPOSITORY, completed

PAYLOAD = b'{"any": "bytes \xff"}'


@pytest.fixture
def alice() -> Person:
    return person("alice")


@pytest.fixture
def trust(tmp_path: Path, alice: Person) -> Verifier:
    return verifier(tmp_path, alice)


def header(**changes: Any) -> dict[str, Any]:
    good = {"alg": "EdDSA", "kid": "alice", "typ": "lp-request"}
    return {key: value for key, value in {**good, **changes}.items() if value is not ...}


@pytest.mark.parametrize("payload", [PAYLOAD, b"", b"x" * MAX_SIGNED_PAYLOAD])
def test_a_signed_message_is_verified(alice: Person, trust: Verifier, payload: bytes) -> None:
    token = alice.signer.sign(payload, MessageKind.REQUEST)
    assert trust.verify(token, MessageKind.REQUEST) == Signed(signer=ALICE, payload=payload)
    assert len(token) <= MAX_TOKEN
    assert json.loads(decode(token.split(b".")[0])) == header()


def test_too_much_is_neither_signed_nor_read(alice: Person, trust: Verifier) -> None:
    with pytest.raises(InvalidInputError, match="the limit is"):
        alice.signer.sign(b"x" * (MAX_SIGNED_PAYLOAD + 1), MessageKind.REQUEST)
    with pytest.raises(IntegrityError, match="the limit is"):
        trust.verify(b"." * (MAX_TOKEN + 1), MessageKind.REQUEST)


@pytest.mark.parametrize("payload", [PAYLOAD, b"", b"x" * MAX_SIGNED_PAYLOAD])
def test_a_message_is_stored_in_fewer_bytes_and_read_whole(alice: Person, payload: bytes) -> None:
    token = alice.signer.sign(payload, MessageKind.REQUEST)
    assert with_base64(without_base64(token)) == with_base64(token) == token
    assert len(without_base64(token)) < len(token)


def test_the_claimed_payload_is_read_without_verification(alice: Person) -> None:
    token = alice.signer.sign(PAYLOAD, MessageKind.REQUEST)
    assert claimed_payload(token) == PAYLOAD
    assert claimed_payload(token[:-3]) == PAYLOAD, "the signature is not verified"
    for bad in (b"", b"a.b", b"a.b.c", b"a.b=.c", b"." * (MAX_TOKEN + 1)):
        with pytest.raises(IntegrityError):
            claimed_payload(bad)


@pytest.mark.parametrize("made", list(MessageKind))
def test_a_message_of_a_kind_is_never_valid_as_another_kind(
    alice: Person, trust: Verifier, made: MessageKind
) -> None:
    token = alice.signer.sign(PAYLOAD, made)
    for wanted in MessageKind:
        if wanted is made:
            assert trust.verify(token, wanted).signer == ALICE
            continue
        with pytest.raises(IntegrityError, match=f"typ is '{made}' where {wanted} is needed"):
            trust.verify(token, wanted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alg": "none"}, "alg is 'none', alice's key is for EdDSA"),
        ({"alg": "None"}, "alg is 'None'"),
        ({"alg": "HS256"}, "alg is 'HS256'"),
        ({"alg": "Ed25519"}, "alg is 'Ed25519'"),
        ({"alg": "RS256"}, "alg is 'RS256'"),
        ({"alg": "ES256"}, "alg is 'ES256'"),
        ({"alg": ["EdDSA"]}, "alg is no text"),
        ({"alg": ...}, "alg is None"),
        ({"alg": "\x1b[2J"}, r"alg is '\\x1b\[2J'"),
        ({"typ": ...}, "typ is None"),
        ({"typ": "JWT"}, "typ is 'JWT'"),
        ({"typ": "LP-REQUEST"}, "typ is"),
        ({"kid": ...}, "no kid"),
        ({"kid": 7}, "no kid"),
        ({"kid": "bob"}, "no key of bob is trusted here.*keys trust bob FILE"),
        ({"kid": "../trusted/alice"}, "kid '../trusted/alice' is not a signer's name"),
        ({"kid": "/etc/passwd"}, "not a signer's name"),
        ({"kid": "alice\x00"}, "not a signer's name"),
        ({"kid": "alice\n"}, "not a signer's name"),
        ({"kid": "Alice"}, "not a signer's name"),
        ({"kid": ".alice"}, "not a signer's name"),
        ({"kid": "a" * 252}, "not a signer's name"),
        ({"kid": ""}, "not a signer's name"),
        ({"crit": ["exp"]}, "'crit' in the header"),
        ({"crit": []}, "'crit' in the header"),
        ({"b64": False, "crit": ["b64"]}, "in the header"),
        ({"b64": True}, "'b64' in the header"),
        ({"jwk": {"kty": "OKP"}}, "'jwk' in the header"),
        ({"jku": "https://evil.example.com/keys"}, "'jku' in the header"),
        ({"x5u": "https://evil.example.com/cert"}, "'x5u' in the header"),
        ({"zip": "DEF"}, "'zip' in the header"),
        ({"x5c": ["MIIB"]}, "a key of alice is pinned"),
    ],
)
def test_headers_that_are_refused_though_the_signature_holds(
    alice: Person, trust: Verifier, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(IntegrityError, match=message) as caught:
        trust.verify(forge(alice.key, header(**changes)), MessageKind.REQUEST)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"alg":"EdDSA","kid":"alice","kid":"root","typ":"lp-request"}', "duplicate key 'kid'"),
        (b'{"alg":"none","alg":"EdDSA","kid":"alice","typ":"lp-request"}', "duplicate key 'alg'"),
        (b"[]", "not a JSON object"),
        (b'"alice"', "not a JSON object"),
        (b"{", "is not JSON"),
        (b"\xff", "not UTF-8"),
        (b'{"alg":' + b"[" * 100 + b"]" * 100 + b"}", "nested too deep"),
        (b'{"kid":"' + b"a" * 20000 + b'"}', "three base64url parts"),
    ],
)
def test_headers_that_are_no_json(alice: Person, trust: Verifier, raw: bytes, message: str) -> None:
    with pytest.raises(IntegrityError, match=message):
        trust.verify(forge(alice.key, raw), MessageKind.REQUEST)


def test_a_missing_or_empty_signature_is_rejected(alice: Person, trust: Verifier) -> None:
    body = encode(json.dumps(header()).encode()) + b"." + encode(b"{}")
    for token in (body, body + b".", body + b"." + encode(b"\0" * 64)):
        with pytest.raises(IntegrityError, match="signature"):
            trust.verify(token, MessageKind.REQUEST)
    unsigned = encode(json.dumps(header(alg="none")).encode()) + b".e30."
    with pytest.raises(IntegrityError, match="alg is 'none'"):
        trust.verify(unsigned, MessageKind.REQUEST)


def test_a_public_key_is_no_secret_for_hmac(alice: Person, trust: Verifier) -> None:
    """The classic confusion: the receiver's public key used as the key of an HMAC."""
    public = alice.key.public_key()
    for secret in (
        public_pem(public),
        public.public_bytes_raw(),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    ):
        body = encode(json.dumps(header(alg="HS256")).encode()) + b"." + encode(b"{}")
        token = body + b"." + encode(hmac.new(secret, body, hashlib.sha256).digest())
        with pytest.raises(IntegrityError, match="alg is 'HS256'"):
            trust.verify(token, MessageKind.REQUEST)


def test_the_key_of_a_signer_does_not_verify_another_signer(tmp_path: Path, alice: Person) -> None:
    bob = person("bob")
    both = verifier(tmp_path, alice, bob)
    with pytest.raises(IntegrityError, match="the signature does not match alice's key"):
        both.verify(forge(bob.key, header()), MessageKind.REQUEST)
    with pytest.raises(IntegrityError, match="the signature does not match bob's key"):
        both.verify(forge(alice.key, header(kid="bob")), MessageKind.REQUEST)


def test_every_byte_of_a_message_counts(alice: Person, trust: Verifier) -> None:
    token = alice.signer.sign(b'{"action": "status"}', MessageKind.REQUEST)
    for place in range(len(token)):
        for other in (b"A", b"B", b"_", b".", b"=", b"+", b"\n", b" ", b"\xff", b""):
            changed = token[:place] + other + token[place + 1 :]
            if changed == token:
                continue
            with pytest.raises(IntegrityError) as caught:
                trust.verify(changed, MessageKind.REQUEST)
            assert str(caught.value).isprintable()
    for length in range(len(token)):
        with pytest.raises(IntegrityError):
            trust.verify(token[:length], MessageKind.REQUEST)
    for more in (b".", b"=", b"\n", b"A", b".e30"):
        with pytest.raises(IntegrityError):
            trust.verify(token + more, MessageKind.REQUEST)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.from_regex(rb"[\w-]{0,40}\.[\w-]{0,40}\.[\w-]{0,40}"))
def test_any_bytes_are_refused_in_a_single_line(trust: Verifier, token: bytes) -> None:
    with pytest.raises(IntegrityError) as caught:
        trust.verify(token, MessageKind.REQUEST)
    assert str(caught.value).isprintable()


def test_a_node_trusts_itself_but_for_its_name_alone(tmp_path: Path) -> None:
    web = person("web01.example.com")
    own = Verifier(trusting(tmp_path / "t"), None, FakeClock(), own=(WEB01, web.key.public_key()))
    token = web.signer.sign(b"{}", MessageKind.PRESENCE)
    assert own.verify(token, MessageKind.PRESENCE).signer == WEB01
    with pytest.raises(IntegrityError, match="no key of alice"):
        own.verify(forge(web.key, header()), MessageKind.REQUEST)


def test_keys_of_other_kinds_do_not_sign(alice: Person) -> None:
    with pytest.raises(InvalidInputError, match="Ed25519 without a certificate"):
        MessageSigner(ALICE, rsa_key())
    with pytest.raises(InvalidInputError, match="RSA or EC with one"):
        MessageSigner(ALICE, alice.key, certificate=Ca().issue("alice").der)


def openssl(*arguments: str | Path) -> str:
    done = completed("openssl", *arguments, check=False)
    return done.out + done.err


def test_openssl_verifies_localpuppets_signatures(tmp_path: Path, alice: Person) -> None:
    body, _, signature = alice.signer.sign(b"{}", MessageKind.REQUEST).rpartition(b".")
    (tmp_path / "body").write_bytes(body)
    (tmp_path / "signature").write_bytes(decode(signature))
    (tmp_path / "key.pem").write_bytes(public_pem(alice.key.public_key()))
    verify = f"pkeyutl -verify -pubin -inkey {tmp_path}/key.pem -rawin"
    files = f"-in {tmp_path}/body -sigfile {tmp_path}/signature"
    assert "Signature Verified Successfully" in openssl(*verify.split(), *files.split())
    (tmp_path / "body").write_bytes(body + b"A")
    assert "Verified Successfully" not in openssl(*verify.split(), *files.split())


def test_localpuppet_verifies_signatures_of_openssl(tmp_path: Path) -> None:
    key = tmp_path / "alice.pem"
    openssl("genpkey", "-algorithm", "ed25519", "-out", key)
    openssl("pkey", "-in", key, "-pubout", "-out", tmp_path / "public.pem")
    (tmp_path / "trusted").mkdir()
    (tmp_path / "public.pem").rename(tmp_path / "trusted" / "alice.pem")
    body = encode(json.dumps(header()).encode()) + b"." + encode(PAYLOAD)
    (tmp_path / "body").write_bytes(body)
    sign: list[str | Path] = ["pkeyutl", "-sign", "-inkey", key, "-rawin", "-in", tmp_path / "body"]
    openssl(*sign, "-out", tmp_path / "signature")
    token = body + b"." + encode((tmp_path / "signature").read_bytes())
    assert verifier(tmp_path).verify(token, MessageKind.REQUEST).payload == PAYLOAD


@pytest.mark.parametrize("rsa", [True, False])
def test_openssl_agrees_with_signatures_by_certificate(tmp_path: Path, rsa: bool) -> None:
    issued = Ca().issue("alice", key=rsa_key() if rsa else None)
    signer = MessageSigner(ALICE, issued.key, certificate=issued.der)
    body, _, signature = signer.sign(b"{}", MessageKind.REQUEST).rpartition(b".")
    raw = decode(signature)
    if not rsa:
        from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

        raw = encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))
    (tmp_path / "body").write_bytes(body)
    (tmp_path / "signature").write_bytes(raw)
    (tmp_path / "key.pem").write_bytes(pem(issued.key))
    padding = ["-sigopt", "rsa_padding_mode:pss"] if rsa else []
    files = [tmp_path / name for name in ("key.pem", "signature", "body")]
    said = openssl("dgst", "-sha256", *padding, "-prverify", files[0], "-signature", *files[1:])
    assert "Verified OK" in said


def test_a_message_tells_when_its_certificate_ends(alice: Person) -> None:
    issued = Ca().issue("alice", until=NOW + 3 * DAY)
    certified = MessageSigner(ALICE, issued.key, certificate=issued.der)
    end = certificate_end(certified.sign(b"{}", MessageKind.PRESENCE))
    assert end == (NOW + 3 * DAY).replace(microsecond=0).timestamp()
    assert certificate_end(alice.signer.sign(b"{}", MessageKind.PRESENCE)) is None


def test_joserfc_is_not_loaded_for_a_pinned_key() -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey\n"
        "from localpuppet.base.formats.names import SignerName\n"
        "from localpuppet.base.machine.process_table import SystemClock\n"
        "from localpuppet.fleet.trust.key_files import TrustedKeys\n"
        "from localpuppet.fleet.trust.signing import MessageKind, MessageSigner, Verifier\n"
        "name, key = SignerName('a.example'), Ed25519PrivateKey.generate()\n"
        "token = MessageSigner(name, key).sign(b'text', MessageKind.TRIGGER)\n"
        "own = (name, key.public_key())\n"
        "verifier = Verifier(TrustedKeys(Path('/nowhere')), None, SystemClock(), own=own)\n"
        "print(verifier.verify(token, MessageKind.TRIGGER).payload, 'joserfc' in sys.modules)"
    )
    env = {"PYTHONPATH": str(REPOSITORY)}
    assert completed(sys.executable, "-c", code, env=env).out == "b'text' False\n"
