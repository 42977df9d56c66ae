"""Signatures of tags, held against pinned keys.

Owns: which bytes of a tag are a signature (one block, of one kind, that ends the tag), and who may
have made it: an OpenSSH allowed-signers file, or OpenPGP keys in a home of their own. Refuses to
know: where a tag came from. Invariants: what git verifies is the block that was looked at here; the
kind that the source's signers are of is the only one that git can verify at all; nothing of the
home of who runs us is asked.
"""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from localpuppet.errors import IntegrityError
from localpuppet.formats.text import last_words
from localpuppet.machine.anchors import read_anchor
from localpuppet.releases.git.program import GitProgram

OPENSSH = "SSH SIGNATURE"
OPENPGP = "PGP SIGNATURE"
_NAMES = {
    OPENSSH: "OpenSSH",
    OPENPGP: "OpenPGP",
    "PGP MESSAGE": "an OpenPGP message",
    "SIGNED MESSAGE": "X.509",
}
# git takes the last line that begins like one of these for the start of the signature, whatever
# stands between it and the end of the tag.
_BEGIN = re.compile(rb"^-----BEGIN (%s)-----" % "|".join(_NAMES).encode(), re.MULTILINE)
# Every program that git could ask, as long as none is put in its place.
_PROGRAMS = ("gpg.program", "gpg.openpgp.program", "gpg.x509.program", "gpg.ssh.program")
_REFUSES = "/bin/false"


def verify(
    program: GitProgram, mirror: Path, tag_object: str, *, signers: Path, where: str
) -> None:
    """Hold the signature of a tag object against pinned keys.

    Args:
        program: Starts git.
        mirror: The git directory that has the object.
        tag_object: Its id.
        signers: An OpenSSH allowed-signers file, or OpenPGP public keys in ASCII armour.
        where: The repository and tag, for messages.

    Raises:
        IntegrityError: The tag is unsigned, signed twice or in another way than `signers` can
            judge, signed by nobody in `signers`, or has text that no signature covers.
        InvalidInputError: The file of keys is refused.
    """
    kind = signature_kind(program.run(mirror, "cat-file", "tag", tag_object), where=where)
    keys = read_anchor(signers)
    openpgp = b"BEGIN PGP PUBLIC KEY" in keys
    wanted = OPENPGP if openpgp else OPENSSH
    if kind != wanted:
        raise IntegrityError(
            f"is signed with {_NAMES[kind]}, and the source's signers are {_NAMES[wanted]} keys",
            where=where,
            hint=f"tag the release anew, with a key of {signers}",
        )
    with tempfile.TemporaryDirectory(prefix="localpuppet-signers-") as home:
        # The very bytes that were looked at: a file can be replaced between two looks.
        copy = Path(home) / "signers"
        copy.write_bytes(keys)
        if openpgp:
            _import_keys(program, Path(home), copy, where=str(signers))
            # Keys in a home of their own: who is in it is trusted, nobody else.
            settings = ["gpg.openpgp.program=gpg", "gpg.minTrustLevel=undefined"]
        else:
            settings = ["gpg.ssh.program=ssh-keygen", f"gpg.ssh.allowedSignersFile={copy}"]
        _verify(program, mirror, tag_object, where, Path(home), settings)


def signature_kind(body: bytes, *, where: str) -> str:
    """Return which kind of signature ends a tag: `OPENSSH`, `OPENPGP`, or one that git knows, too.

    Args:
        body: The bytes of the tag object.
        where: The repository and tag, for messages.

    Raises:
        IntegrityError: There is none, there are several, or a block is not the end of the message.
    """
    blocks = list(_BEGIN.finditer(body))
    if not blocks:
        raise IntegrityError(
            "is not signed", where=where, hint="'localpuppet release tag --sign' signs tags"
        )
    begin, kind = blocks[-1].start(), blocks[-1][1].decode()
    end = b"\n-----END %s-----\n" % kind.encode()
    problem = ""
    if len(blocks) > 1:
        problem = "has more than one signature"
    elif b"\n\n" not in body[:begin]:
        problem = "has a signature in its header"
    elif not body[begin:].count(end):
        problem = "has a signature that is cut off"
    elif not body.endswith(end) or body[begin:].count(end) > 1:
        problem = "has text that the signature does not cover"
    if problem:
        raise IntegrityError(problem, where=where, hint="do not use it; ask who made the tag")
    return kind


def _import_keys(program: GitProgram, home: Path, keys: Path, *, where: str) -> None:
    done = subprocess.run(
        ["gpg", "--batch", "--quiet", "--homedir", home, "--import", "--", keys],  # noqa: S607
        env={**program.env, "HOME": str(home)},
        capture_output=True,
        timeout=program.timeout,
        check=False,
    )
    if done.returncode != 0:
        said = last_words(done.stderr, most=200)
        raise IntegrityError(f"the keys cannot be read: {said}", where=where)


def _verify(
    program: GitProgram,
    mirror: Path,
    tag_object: str,
    where: str,
    home: Path,
    settings: Sequence[str],
) -> None:
    """Have git verify a tag with the one program that `settings` name, in a home of our own."""
    config = [f"{name}={_REFUSES}" for name in _PROGRAMS] + list(settings)
    done = program.start(
        mirror,
        *[word for setting in config for word in ("-c", setting)],
        "verify-tag",
        "--raw",
        tag_object,
        env={"HOME": str(home), "GNUPGHOME": str(home)},
    )
    if done.returncode != 0:
        raise IntegrityError(
            "has no valid signature by a trusted key",
            where=where,
            hint="check the source's pinned keys; do not use the release meanwhile",
        )
