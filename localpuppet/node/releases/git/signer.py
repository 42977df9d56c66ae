"""Identifies signers, and decides which of them are one person.

TUF counts each key once, however many signatures it made; localpuppet counts people, who may have
several keys. Two signers are one person if they share a key or a name. The pinned file gives each
key its names: the principals of OpenSSH, the addresses in the user ids of OpenPGP.

    people([Signer(name="alice", marks={"alice", "SHA256:1"}),
            Signer(name="alice", marks={"alice", "SHA256:2"})])
    # ["alice"]
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_GOOD_SSH = re.compile(r'^Good "git" signature for (.+) with \S+ key (SHA256:\S+)$', re.MULTILINE)
_VALID_PGP = re.compile(r"^\[GNUPG:\] VALIDSIG (?:\S+ ){9}([0-9A-F]{40,64})\b", re.MULTILINE)
_GOOD_PGP = re.compile(r"^\[GNUPG:\] GOODSIG \S+ (.+)$", re.MULTILINE)
# Principals, which may be quoted, options, the kind of key, the key.
_ALLOWED = re.compile(r'[ \t]*((?:"[^"]*"|[^\s"])+)[ \t].*?(AAAA[A-Za-z0-9+/]+=*)')
_ADDRESS = re.compile(r"<([^<>]+)>\s*\Z")
_ESCAPED = re.compile(r"\\x([0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TagSigner:
    """The signer of a valid signature.

    Attributes:
        name: The name for messages.
        marks: The identity of the person: the key and its names.
    """

    name: str
    marks: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Countersignature:
    """A signature beside a tag's own one.

    Attributes:
        id: The id of its object.
        signer: The signer; `None` if it does not count.
        problem: Why it does not count, or empty.
    """

    id: str
    signer: TagSigner | None = None
    problem: str = ""


def people(signers: Iterable[TagSigner]) -> list[str]:
    """Return the distinct people among signers, in order, each by the first of their names."""
    named: list[tuple[str, frozenset[str]]] = []
    for signer in signers:
        same = [signer_names for signer_names in named if signer_names[1] & signer.marks]
        name = same[0][0] if same else signer.name
        marks = signer.marks.union(*(signer_names[1] for signer_names in same))
        place = named.index(same[0]) if same else len(named)
        named = [signer_names for signer_names in named if signer_names not in same]
        named.insert(place, (name, marks))
    return [name for name, _ in named]


def ssh_names(allowed: str) -> dict[str, frozenset[str]]:
    """Return the names of each key in an OpenSSH allowed-signers file, by its fingerprint.

    Args:
        allowed: The file: a line has principals (a list with commas), options, a key.
    """
    by_principal: dict[str, frozenset[str]] = {}
    for line in allowed.splitlines():
        match = _ALLOWED.match(line)
        if match is None or match[1].startswith("#"):
            continue
        try:
            key = base64.b64decode(match[2], validate=True)
        except binascii.Error:
            continue  # ssh-keygen does not take it for a key, either
        digest = base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")
        names = {name for name in match[1].replace('"', "").split(",") if name}
        by_principal[f"SHA256:{digest}"] = by_principal.get(f"SHA256:{digest}", frozenset()) | names
    return by_principal


def ssh_signer(output: str, names: Mapping[str, frozenset[str]]) -> TagSigner | None:
    """Return the signer that OpenSSH reports, or `None`.

    Args:
        output: The output of `git verify-tag --raw`.
        names: The result of `ssh_names` for the allowed-signers file.
    """
    good = _GOOD_SSH.findall(output)
    if len(good) != 1:
        return None
    principal, key = good[0]
    return TagSigner(
        name=principal, marks=frozenset({principal, key}) | names.get(key, frozenset())
    )


def openpgp_names(listing: str) -> dict[str, frozenset[str]]:
    """Return the addresses of each key of a keyring, by its primary key's fingerprint.

    Args:
        listing: The output of `gpg --with-colons --list-keys`.
    """
    by_fingerprint: dict[str, set[str]] = {}
    primary, wanted = "", False
    for fields in (line.split(":") for line in listing.splitlines()):
        if fields[0] in ("pub", "sub"):
            wanted = fields[0] == "pub"
        elif fields[0] == "fpr" and wanted and len(fields) > 9:
            primary, wanted = fields[9], False
            by_fingerprint[primary] = set()
        elif fields[0] == "uid" and primary and len(fields) > 9:
            name = _ESCAPED.sub(lambda escape: chr(int(escape[1], 16)), fields[9])
            address = _ADDRESS.search(name)
            by_fingerprint[primary].add((address[1] if address else name).lower())
    return {key: frozenset(names) for key, names in by_fingerprint.items()}


def openpgp_signer(output: str, names: Mapping[str, frozenset[str]]) -> TagSigner | None:
    """Return the signer that GnuPG reports, or `None`.

    Args:
        output: The output of `git verify-tag --raw`.
        names: The result of `openpgp_names` for the keyring.
    """
    valid, good = _VALID_PGP.findall(output), _GOOD_PGP.findall(output)
    if len(valid) != 1 or len(good) != 1:
        return None
    return TagSigner(name=good[0], marks=frozenset({valid[0]}) | names.get(valid[0], frozenset()))
