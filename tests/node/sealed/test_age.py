"""age through pyrage: what is refused before the library sees it, and a plugin."""

import os
import subprocess
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.sealed.age import (
    MAX_HEADER,
    MAX_PLAINTEXT,
    AgeIdentity,
    AgeRecipient,
    NotOpenedError,
    check_form,
    open_sealed,
    parse_identities,
    seal,
)

KEY = AgeIdentity.generate()
FIRST = b"age-encryption.org/v1\n"
STANZA = b"-> X25519 %b\n%b\n" % (b"A" * 43, b"A" * 43)
GREASE = b"-> x-grease a b\n%b\nAA\n" % (b"A" * 64)
MAC = b"--- %b\n" % (b"A" * 43)


@pytest.mark.parametrize("size", [0, 1, 100, MAX_PLAINTEXT])
def test_a_sealed_file_opens_for_its_recipient_only(size: int) -> None:
    sealed = seal(b"x" * size, KEY.recipient)
    assert open_sealed(sealed, [AgeIdentity.generate(), KEY]) == b"x" * size
    with pytest.raises(NotOpenedError):
        open_sealed(sealed, [AgeIdentity.generate()])


def test_more_than_64_kib_are_not_sealed() -> None:
    with pytest.raises(InvalidInputError, match="too large to seal"):
        seal(b"x" * (MAX_PLAINTEXT + 1), KEY.recipient)


@pytest.mark.parametrize("header", [STANZA, STANZA + GREASE, GREASE + STANZA])
def test_a_header_has_one_recipient_and_at_most_one_grease(header: bytes) -> None:
    check_form(FIRST + header + MAC + b"\0" * 32)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        GREASE,
        STANZA + STANZA,
        GREASE + STANZA + GREASE + GREASE,
        STANZA + GREASE + STANZA,
        b"-> scrypt %b 30\n%b\n" % (b"A" * 22, b"A" * 43),
        b"-> ssh-ed25519 AAAAAA %b\n%b\n" % (b"A" * 43, b"A" * 43),
        STANZA.replace(b"X25519", b"x25519"),
        STANZA + b"-> x-grease\n" + (b"A" * 64 + b"\n") * 400 + b"\n",
        b"-> " + b"x" * MAX_HEADER + b"-grease\n\n" + STANZA,
    ],
)
def test_another_header_is_refused_before_the_library_parses_it(header: bytes) -> None:
    with pytest.raises(InvalidInputError, match="is not an age file for one recipient"):
        open_sealed(FIRST + header + MAC + b"\0" * 32, [KEY])


def test_a_file_longer_than_any_that_is_sealed_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="too large"):
        open_sealed(FIRST + STANZA + MAC + b"\0" * (2 * MAX_PLAINTEXT), [KEY])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA alice", "SSH key.*two purposes"),
        (str(AgeIdentity.generate()), "secret identity"),
        (KEY.recipient[:-1] + ("q" if KEY.recipient[-1] != "q" else "p"), "not an age recipient"),
        ("age1yubikey1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq", "only an operator"),
        ("", "not an age recipient"),
    ],
    ids=["ssh", "secret", "mistyped", "plugin", "empty"],
)
def test_another_kind_of_key_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem) as error:
        AgeRecipient.parse(text)
    assert "AGE-SECRET" not in str(error.value)


def test_an_identity_file_may_have_comments_and_never_shows_its_secrets() -> None:
    data = f"# created: today\n# public key: {KEY.recipient}\n\n{KEY}\n".encode()
    (identity,) = parse_identities(data, where="key.txt")
    assert (identity, identity.recipient) == (KEY, KEY.recipient)
    assert str(KEY)[20:] not in repr(identity)
    broken = data.replace(b"AGE-SECRET-KEY-1", b"AGE-SECRET-KEY-1Q")
    with pytest.raises(InvalidInputError, match="not an age identity") as error:
        parse_identities(broken, where="key.txt")
    assert str(KEY)[20:] not in str(error.value)


# A plugin as age runs it: it "seals" by turning the file key around, and needs no key.
PLUGIN = """#!/usr/bin/python3
import base64, sys
def b64(data): return base64.b64encode(data).decode().rstrip("=")
def send(*words, body=b""):
    text = b64(body)
    lines = [text[i:i + 64] for i in range(0, len(text), 64)] or [""]
    if len(lines[-1]) == 64: lines.append("")
    print("->", *words); print(*lines, sep="\\n", flush=True)
def stanza():
    words = sys.stdin.readline().split()[1:]
    text = ""
    while True:
        line = sys.stdin.readline().rstrip("\\n"); text += line
        if len(line) < 64: break
    return words, base64.b64decode(text + "=" * (-len(text) % 4))
stanzas, keys = [], []
while True:
    words, body = stanza()
    if words[0] == "done": break
    if words[0] == "wrap-file-key": keys.append(body)
    if words[0] == "recipient-stanza": stanzas.append((words[1:], body))
if sys.argv[1] == "--age-plugin=recipient-v1":
    for i, key in enumerate(keys):
        send("recipient-stanza", str(i), "turned", "x", body=key[::-1]); stanza()
else:
    for words, body in stanzas:
        if words[1] == "turned": send("file-key", words[0], body=body[::-1]); stanza()
send("done")
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put `age-plugin-turned` into the path."""
    program = tmp_path / "age-plugin-turned"
    program.write_text(PLUGIN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.mark.usefixtures("plugin")
def test_a_plugin_seals_and_opens_for_an_operator() -> None:
    recipient = AgeRecipient.parse(
        "age1turned1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqa5qtz9", plugins=True
    )
    (identity,) = parse_identities(b"AGE-PLUGIN-TURNED-1QQQQQQQQHTYPD3", where="", plugins=True)
    sealed = seal(b"secret", recipient)
    assert b"-> turned x\n" in sealed
    assert open_sealed(sealed, [identity]) == b"secret"
    with pytest.raises(InvalidInputError, match="not an age file for one recipient"):
        open_sealed(sealed, [KEY])


@pytest.mark.usefixtures("plugin")
def test_a_missing_plugin_is_named() -> None:
    recipient = "age1turned1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqa5qtz9"
    (Path(os.environ["PATH"].partition(":")[0]) / "age-plugin-turned").unlink()
    with pytest.raises(InvalidInputError, match="age-plugin-turned"):
        seal(b"secret", recipient)


def test_debians_age_opens_what_is_sealed_and_seals_what_is_opened(tmp_path: Path) -> None:
    key, sealed = tmp_path / "key.txt", seal(b"secret", KEY.recipient)
    key.write_text(f"{KEY}\n")
    opened = subprocess.run(["age", "-d", "-i", key], input=sealed, capture_output=True, check=True)
    assert opened.stdout == b"secret"
    made = subprocess.run(
        ["age", "-r", KEY.recipient], input=b"other", capture_output=True, check=True
    )
    assert open_sealed(made.stdout, [KEY]) == b"other"


def test_a_key_of_low_order_is_refused_as_an_input() -> None:
    zero = AgeRecipient("age1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq5cu47z")
    with pytest.raises(InvalidInputError, match="everybody could open it"):
        seal(b"x", zero)
