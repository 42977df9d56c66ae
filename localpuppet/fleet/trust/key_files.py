"""Key files: this node's private key and the pinned public keys of other signers.

- Keys are Ed25519.
- A private key is created with mode 0600 and rejected if other users can read it. It is created
  once and replaced only on request.
- Each pinned key is a file that is replaced atomically, so that Puppet can manage the directory.
"""

import base64
import binascii
import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import IntegrityError, InvalidInputError, errors_at
from localpuppet.base.formats.names import SignerName, did_you_mean
from localpuppet.base.machine import files
from localpuppet.base.machine.anchors import puppet_user

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes


MAX_KEY_FILE = 16 * 1024
# An Ed25519 key as DER is one of these and 32 bytes (RFC 8410).
_PUBLIC_DER = bytes.fromhex("302a300506032b6570032100")
_PRIVATE_DER = bytes.fromhex("302e020100300506032b657004220420")
_BLOCK = re.compile(
    rb"-----BEGIN ([A-Z0-9 ]{1,40})-----\r?\n[A-Za-z0-9+/=\r\n]+-----END \1-----[ \t\r\n]*"
)


def fingerprint(key: "PublicKeyTypes") -> str:
    """Return the fingerprint of a public key, `SHA256:…` as `ssh-keygen -l` prints it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    try:
        line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except (UnsupportedAlgorithm, ValueError) as error:
        raise InvalidInputError("is a key type without a fingerprint") from error
    return fingerprint_of(base64.b64decode(line.split(b" ")[1]))


def fingerprint_of(data: bytes) -> str:
    """Return the digest of bytes in OpenSSH's form, `SHA256:…`."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def public_pem(key: "PublicKeyTypes") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _plain_key(pem: bytes, label: bytes, der: bytes) -> bytes | None:
    """Return the bytes of an Ed25519 key in the form that localpuppet writes; `None` for another.

    The reader of all forms takes 1 MiB.
    """
    begin, _, rest = pem.partition(b"\n")
    body, _, end = rest.partition(b"\n")
    if (begin, end) != (b"-----BEGIN %s-----" % label, b"-----END %s-----\n" % label):
        return None
    with suppress(ValueError):
        data = binascii.a2b_base64(body, strict_mode=True)
        if data.startswith(der) and len(data) == len(der) + 32:
            return data[len(der) :]
    return None


def parse_public(data: bytes, *, where: str) -> "Ed25519PublicKey":
    """Return the key in one PEM block, after comment lines (`#`) as `keys show` prints them."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    plain = _plain_key(data, b"PUBLIC KEY", _PUBLIC_DER)
    if plain is not None:
        return Ed25519PublicKey.from_public_bytes(plain)
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    lines = data.splitlines(keepends=True)
    while lines and (lines[0].startswith(b"#") or not lines[0].strip()):
        lines.pop(0)
    block = _BLOCK.fullmatch(b"".join(lines))
    label = block.group(1) if block else b""
    if b"PRIVATE" in data:
        raise InvalidInputError(
            "is a private key, which must stay on its node",
            where=where,
            hint="'localpuppet keys show' prints the public key",
        )
    if label == b"CERTIFICATE":
        raise InvalidInputError(
            "is a certificate; only keys can be pinned", where=where, hint="set identity.ca instead"
        )
    if block is None or label != b"PUBLIC KEY":
        raise InvalidInputError(
            "is not a public key: one PEM block is needed",
            where=where,
            hint="'localpuppet keys show' on the other node prints it",
        )
    try:
        key = load_pem_public_key(block.group())
    except ValueError as error:
        raise InvalidInputError("is not a readable public key", where=where) from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidInputError("is not an Ed25519 key", where=where, hint="pin an Ed25519 key")
    return key


def read_private(path: Path, *, of_puppet: bool = False) -> bytes:
    """Return the bytes of a private key; raise `InvalidInputError` if other users can read it.

    In each run, Puppet sets the mode of its key to 0640 and the owner to its service user, so user
    and group of a key `of_puppet` may be `puppet`.
    """
    user = puppet_user() if of_puppet else None
    return files.read_secret_file(
        path,
        what="a private key",
        limit=MAX_KEY_FILE,
        owners=[] if user is None else [user.pw_uid],
        readers={0, *([] if user is None else [user.pw_gid])} if of_puppet else (),
    )


def read_secret(file: Path) -> str:
    """Return the secret in a private file, one line of ASCII characters.

    If this process has a credential of systemd with the name of the file, the secret is in that.
    """
    handed = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent"), file.name)
    data = read_private(handed if handed.is_file() else file).strip()
    text = data.decode("ascii", "replace")
    if not text or not text.isascii() or not text.isprintable():
        raise InvalidInputError("is no line of ASCII characters", where=str(file))
    return text


def parse_private(pem: bytes, *, where: str) -> "PrivateKeyTypes":
    """Return a private key; raise `InvalidInputError` if it is invalid or has a password."""
    from cryptography.exceptions import UnsupportedAlgorithm

    plain = _plain_key(pem, b"PRIVATE KEY", _PRIVATE_DER)
    if plain is not None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(plain)
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # Without the cause: the library's text may contain secret bytes.
        raise InvalidInputError("is not a private key, or has a password", where=where) from None


class OwnKey:
    """The private key that this node signs with, PKCS8 as PEM."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> "Ed25519PrivateKey":
        """Return the key; raise `InvalidInputError` if it is missing, exposed or not Ed25519."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        where = str(self.path)
        if not self.path.exists():
            raise InvalidInputError(
                "this node has no key", where=where, hint="run 'localpuppet keys init'"
            )
        key = parse_private(read_private(self.path), where=where)
        if not isinstance(key, Ed25519PrivateKey):
            raise InvalidInputError("is not an Ed25519 key", where=where)
        return key

    def make(self, *, replace: bool = False) -> "Ed25519PrivateKey":
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        files.make_private(self.path.parent)
        if replace:
            files.write_durably(self.path, pem)
        elif not files.add_durably(self.path, pem):
            raise InvalidInputError(
                "this node has a key already",
                where=str(self.path),
                hint="'--replace' creates a new key, which all other nodes must trust again;"
                " 'localpuppet keys show' prints this key",
            )
        return key

    def ensure(self) -> "Ed25519PrivateKey":
        """Return the key; create it if it is missing, as sshd does with host keys."""
        if not self.path.exists():
            try:
                return self.make()
            except InvalidInputError:
                pass  # another process created the key first
        return self.load()


class TrustedKeys:
    """Pinned public keys of other signers, `NAME.pem` in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._read: dict[SignerName, tuple[object, Ed25519PublicKey]] = {}

    def get(self, name: SignerName) -> "Ed25519PublicKey | None":
        """Return a signer's pinned key, cached until its file changes; `None` if none is pinned."""
        path = self._path(name)
        with files.input_errors(path):
            try:
                status = path.stat()
            except FileNotFoundError:
                files.is_file(path)  # rejects a broken link
                return None
        files.refuse_foreign(self.directory)
        seen = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
        known = self._read.get(name)
        if known is not None and known[0] == seen:
            return known[1]
        key = parse_public(files.read_user_file(path, limit=MAX_KEY_FILE), where=str(path))
        self._read[name] = (seen, key)
        return key

    def names(self) -> list[SignerName]:
        """Return the signers whose keys are pinned."""
        listed: list[str] = []
        with files.input_errors(self.directory), suppress(FileNotFoundError):
            listed = sorted(os.listdir(self.directory))  # noqa: PTH208 - glob hides what is refused
        names = []
        for file in listed:
            # localpuppet and Puppet write to files with a leading dot before renaming them.
            if file.endswith(".pem") and not file.startswith("."):
                with errors_at(str(self.directory)):
                    names.append(SignerName.parse(file.removesuffix(".pem")))
        return names

    def pin(self, name: SignerName, key: "Ed25519PublicKey", *, replace: bool = False) -> bool:
        """Pin a signer's key; return whether anything changed."""
        path = self._path(name)
        pem = public_pem(key)
        self._make_directory()
        if not replace and files.add_durably(path, pem, mode=0o644):
            return True
        pinned = self.get(name) if not replace else None
        if pinned is not None and public_pem(pinned) == pem:
            return False
        if not replace and pinned is not None:
            raise IntegrityError(
                f"another key of {name} is pinned: {fingerprint(pinned)}, not {fingerprint(key)}",
                where=str(path),
                hint="pass --replace if its owner created a new key",
            )
        files.write_durably(path, pem, mode=0o644)
        return True

    def remove(self, name: SignerName) -> None:
        """Remove a signer's pinned key; raise `InvalidInputError` if none is pinned."""
        path = self._path(name)
        if not path.exists():
            raise InvalidInputError(
                f"no key of {name} is pinned",
                where=str(self.directory),
                hint=did_you_mean(name, list(self.names())),
            )
        files.remove(path)

    def _make_directory(self) -> None:
        """Create the directory, readable by all, as the agent's network process is not root."""
        if self.directory.is_dir():
            return
        with files.disk_errors(self.directory), suppress(FileExistsError):
            self.directory.mkdir(mode=0o755)
            self.directory.chmod(0o755)  # regardless of the umask; only the owner can write
            files.sync_directory(self.directory.parent)

    def _path(self, name: SignerName) -> Path:
        return self.directory / f"{name}.pem"
