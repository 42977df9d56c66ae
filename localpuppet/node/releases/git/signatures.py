"""Verifies signatures of tags with pinned keys, and those of further people beside them.

- A tag's signature is one block of one kind that ends the tag. git verifies exactly the block that
  was examined here.
- Keys are an OpenSSH allowed-signers file, or OpenPGP keys in a temporary home. git can verify only
  the kind of signature that the source's keys have.
- The user's own key rings are never used.

    refs/signatures/r2/1f0c… -> object 9276…   the tag object of r2, so all that it names
                                type tag
                                tag signatures/r2
                                …
                                Localpuppet-Source: web
                                -----BEGIN SSH SIGNATURE-----

A countersignature is a tag object of the tag object, which git signs and verifies like any tag
(`releases.git.signatures`). Its ref is named by its own id, so that no signer replaces another's.
"""

import base64
import binascii
import hashlib
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from localpuppet.base.errors import IntegrityError, StateError, UnavailableError
from localpuppet.base.formats.text import last_words
from localpuppet.base.machine.anchors import read_anchor
from localpuppet.base.value import Value
from localpuppet.node.releases.git import git_names
from localpuppet.node.releases.git.program import GitProgram
from localpuppet.node.releases.limits import MAX_COUNTERSIGNATURE, MAX_COUNTERSIGNATURES

_GOOD_SSH = re.compile(r'^Good "git" signature for (.+) with \S+ key (SHA256:\S+)$', re.MULTILINE)
_VALID_PGP = re.compile(r"^\[GNUPG:\] VALIDSIG (?:\S+ ){9}([0-9A-F]{40,64})\b", re.MULTILINE)
_GOOD_PGP = re.compile(r"^\[GNUPG:\] GOODSIG \S+ (.+)$", re.MULTILINE)
# Principals, which may be quoted, options, the kind of key, the key.
_ALLOWED = re.compile(r'[ \t]*((?:"[^"]*"|[^\s"])+)[ \t].*?(AAAA[A-Za-z0-9+/]+=*)')
_ADDRESS = re.compile(r"<([^<>]+)>\s*\Z")
_ESCAPED = re.compile(r"\\x([0-9a-fA-F]{2})")
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
_KEYS = "signers"


class TagSigner(Value):
    """The signer of a valid signature."""

    name: str
    marks: frozenset[str]


class Countersignature(Value):
    """A signature beside a tag's own one; without a signer, a problem says why."""

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
    """Return the names of each key in an OpenSSH allowed-signers file, by its fingerprint."""
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
    """Return the signer that OpenSSH reports to `git verify-tag --raw`, with its `ssh_names`."""
    good = _GOOD_SSH.findall(output)
    if len(good) != 1:
        return None
    principal, key = good[0]
    return TagSigner(
        name=principal, marks=frozenset({principal, key}) | names.get(key, frozenset())
    )


def openpgp_names(listing: str) -> dict[str, frozenset[str]]:
    """Return each key's addresses in `gpg --with-colons --list-keys`, by primary fingerprint."""
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
    """Return the signer that GnuPG reports to `git verify-tag --raw`, with its `openpgp_names`."""
    valid, good = _VALID_PGP.findall(output), _GOOD_PGP.findall(output)
    if len(valid) != 1 or len(good) != 1:
        return None
    return TagSigner(name=good[0], marks=frozenset({valid[0]}) | names.get(valid[0], frozenset()))


@dataclass(frozen=True, slots=True)
class PinnedKeys:
    """Pinned keys, `OPENSSH` or `OPENPGP`, alone in a directory; made by `pinned`."""

    program: GitProgram
    file: Path
    _: KW_ONLY
    kind: str
    home: Path
    names: Mapping[str, frozenset[str]]

    def verify(self, mirror: Path, tag_object: str, *, where: str) -> TagSigner:
        """Verify the signature of a tag object with the keys; return the signer."""
        body = self.program.run(mirror, "cat-file", "tag", tag_object)
        kind = signature_kind(body, where=where)
        if kind != self.kind:
            raise IntegrityError(
                f"is signed with {_NAMES[kind]}, and the source's signers are"
                f" {_NAMES[self.kind]} keys",
                where=where,
                hint=f"tag the release again, with a key of {self.file}",
            )
        if kind == OPENPGP:
            # The temporary home has exactly the trusted keys.
            settings = ["gpg.openpgp.program=gpg", "gpg.minTrustLevel=undefined"]
            signer = openpgp_signer
        else:
            allowed = f"gpg.ssh.allowedSignersFile={self.home / _KEYS}"
            settings = ["gpg.ssh.program=ssh-keygen", allowed]
            signer = ssh_signer
        signer_found = signer(
            self._verification_output(mirror, tag_object, where, settings), self.names
        )
        if signer_found is None:
            raise IntegrityError("has a signature without a signer", where=where)
        return signer_found

    def _verification_output(
        self, mirror: Path, tag_object: str, where: str, settings: Sequence[str]
    ) -> str:
        """Have git verify a tag with the program that `settings` name, in the temporary home."""
        config = [f"{name}={_REFUSES}" for name in _PROGRAMS] + list(settings)
        done = self.program.start(
            mirror,
            *[word for setting in config for word in ("-c", setting)],
            *["verify-tag", "--raw", tag_object],
            env=_at_home(self.home),
        )
        if done.code != 0:
            raise IntegrityError(
                "has no valid signature by a trusted key",
                where=where,
                hint="check the source's pinned keys; do not use the release meanwhile",
            )
        return done.err.decode("utf-8", "replace")


@contextmanager
def pinned(program: GitProgram, signers: Path) -> Iterator[PinnedKeys]:
    """Yield the keys of a file, ready to verify with."""
    keys = read_anchor(signers)
    openpgp = b"BEGIN PGP PUBLIC KEY" in keys
    with tempfile.TemporaryDirectory(prefix="localpuppet-signers-") as name:
        home = Path(name)
        # The very bytes that were looked at: a file can be replaced between two looks.
        (home / _KEYS).write_bytes(keys)
        if openpgp:
            _gpg(program, home, "--import", "--", str(home / _KEYS), where=str(signers))
            listing = _gpg(program, home, "--with-colons", "--list-keys", where=str(signers))
            names = openpgp_names(listing)
        else:
            names = ssh_names(keys.decode("utf-8", "replace"))
        kind = OPENPGP if openpgp else OPENSSH
        yield PinnedKeys(program, signers, kind=kind, home=home, names=names)


def signature_kind(body: bytes, *, where: str) -> str:
    """Return the kind of signature that ends a tag: `OPENSSH`, `OPENPGP`, or another of git's."""
    if not (blocks := list(_BEGIN.finditer(body))):
        raise IntegrityError(
            "is not signed", where=where, hint="sign it: 'localpuppet release tag DIR TAG --sign'"
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


def _gpg(program: GitProgram, home: Path, *arguments: str, where: str) -> str:
    try:
        done = subprocess.run(
            ["gpg", "--batch", "--quiet", *arguments],  # noqa: S607
            env={**program.env, **_at_home(home)},
            capture_output=True,
            timeout=program.timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            f"gpg did not read the keys within {program.timeout:g} s", where=where
        ) from error
    except FileNotFoundError as error:
        raise StateError("gpg is not installed", hint="apt-get install gpg") from error
    if done.returncode != 0:
        error_text = last_words(done.stderr, most=200)
        raise IntegrityError(f"the keys cannot be read: {error_text}", where=where)
    return done.stdout.decode("utf-8", "replace")


def _at_home(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "GNUPGHOME": str(home)}


def refs_among(listed: Iterable[tuple[str, str]], tag: str) -> list[str]:
    """Return the refs of a tag's countersignatures that a repository listed.

    Other refs are ignored.
    """
    own = git_names.countersignature_refs(tag)
    refs = [name for name, held in listed if name == f"{own}{held}"]
    _refuse_too_many(len(refs), tag)
    return refs


def judged(
    program: GitProgram,
    mirror: Path,
    tag_object: git_names.TagObject,
    *,
    tag: str,
    signers: Path,
    source: str,
) -> list[Countersignature]:
    listed = program.run(
        mirror,
        *["for-each-ref", f"--count={MAX_COUNTERSIGNATURES + 1}"],
        "--format=%(objectname) %(objecttype) %(objectsize)",
        git_names.countersignature_refs(tag),
    )
    lines = list(dict.fromkeys(listed.decode().splitlines()))
    _refuse_too_many(len(lines), tag)
    where = f"tag {tag}"
    if not lines:
        return []
    result = []
    with pinned(program, signers) as keys:
        for line in lines:
            name, kind, size = line.split(" ")
            signer, problem = None, "is not a countersignature"
            if kind == "tag" and int(size) <= MAX_COUNTERSIGNATURE:
                body = program.run(mirror, "cat-file", "tag", name)
                problem = git_names.countersignature_problem(
                    body, tag=tag, tag_object=tag_object.id, source=source
                )
                if not problem:
                    try:
                        signer = keys.verify(mirror, name, where=where)
                    except IntegrityError as error:
                        # Users with push access can add invalid ones, which do not count.
                        problem = error.what
            result.append(Countersignature(id=name, signer=signer, problem=problem))
    return result


def _refuse_too_many(count: int, tag: str) -> None:
    if count > MAX_COUNTERSIGNATURES:
        raise IntegrityError(
            f"has more than {MAX_COUNTERSIGNATURES} countersignatures",
            where=f"tag {tag}",
            hint="remove what is not of your people:"
            f" git push origin :{git_names.countersignature_refs(tag)}ID",
        )
