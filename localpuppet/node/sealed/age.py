"""The file format age (https://age-encryption.org/v1), and the sealing key of a node.

This module alone imports the library pyrage (ADR 64), when it is first needed. Its header parser
takes minutes for half a megabyte, so nothing reaches it before the header has the one form that
`seal` writes: a stanza for one recipient and at most one that means nothing ("grease"), within
`MAX_HEADER` bytes.

The sealing key has its identities in one file, and their recipients beside it:

- `keys init` makes it. A machine that does not exist yet may get a file of `age-keygen` instead.
- While a node changes its key, the file has two: the new one first. Both are in its signed entry.
- systemd can hand it over decrypted (`LoadCredentialEncrypted=sealing.key`, which systemd-creds
  encrypts to the machine): that file counts first.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from localpuppet.base.errors import InvalidInputError, check_limit, errors_at
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.files import make_private, read_secret_file, write_durably

MAX_PLAINTEXT = 64 * 1024
MAX_HEADER = 1024
MAX_IDENTITIES = 16
# A nonce, and the tag of the one block that `MAX_PLAINTEXT` bytes fill.
_MAX_FILE = MAX_HEADER + 16 + MAX_PLAINTEXT + 16

_BODY = rb"(?:[A-Za-z0-9+/]{64}\n){0,12}[A-Za-z0-9+/]{0,63}\n"
_GREASE = rb"(?:-> [!-~]{0,64}-grease(?: [!-~]{1,64}){0,8}\n" + _BODY + rb")?"
_X25519 = rb"-> X25519 [A-Za-z0-9+/]{43}\n[A-Za-z0-9+/]{43}\n"
# A plugin's stanza, for operators: `-> piv-p256 …`. The file says how much CPU a passphrase costs.
_PLUGIN = rb"-> (?!scrypt |X25519 |ssh-)[!-~]{1,64}(?: [!-~]{1,256}){0,8}\n" + _BODY
_FORM = rb"age-encryption\.org/v1\n%b%b%b--- [A-Za-z0-9+/]{43}\n"
_HEADER = _FORM % (_GREASE, _X25519, _GREASE)
_PLUGIN_HEADER = _FORM % (_GREASE, _PLUGIN, _GREASE)

_CHARACTERS = "[02-9ac-hj-np-z]"
RECIPIENT = f"age1{_CHARACTERS}{{58}}"
_PLUGIN_RECIPIENT = rf"age1[a-z0-9.+_-]{{1,64}}1{_CHARACTERS}{{6,400}}\Z"
_IDENTITY = r"AGE-SECRET-KEY-1[02-9AC-HJ-NP-Z]{58}\Z"
_PLUGIN_IDENTITY = r"AGE-PLUGIN-[A-Z0-9.+_-]{1,64}-1[02-9AC-HJ-NP-Z]{6,4000}\Z"


class NotOpenedError(InvalidInputError):
    """None of the identities opens a sealed file, or its bytes were changed."""


class AgeRecipient(str):
    """The public key of a holder: `age1…`; of an operator also a plugin's, `age1NAME1…`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str, *, where: str = "", plugins: bool = False) -> "AgeRecipient":
        """Return the recipient, whose checksum the library has verified.

        With `plugins` a plugin's recipient is accepted, too: nodes have none.
        """
        if text.startswith("ssh-"):
            raise InvalidInputError(
                "is an SSH key, which sealed values refuse: a converted key would serve two"
                " purposes, and each file would name it",
                where=where,
                hint="make an age key with 'age-keygen'",
            )
        if text.startswith("AGE-"):
            raise InvalidInputError(
                "is a secret identity, not a recipient",
                where=where,
                hint="'age-keygen -y FILE' prints its recipient; make a new one if others saw it",
            )
        is_plugin = not re.fullmatch(RECIPIENT, text) and bool(re.match(_PLUGIN_RECIPIENT, text))
        if is_plugin and not plugins:
            raise InvalidInputError(
                "is a plugin's recipient, which only an operator may have", where=where
            )
        library = _library()
        kind = library.plugin if is_plugin else library.x25519
        try:
            kind.Recipient.from_str(text)
        except library.RecipientError as error:
            raise InvalidInputError(
                "is not an age recipient", where=where, hint="copy it whole: age1…"
            ) from error
        return cls(text)

    @property
    def plugin(self) -> str:
        """The plugin, `yubikey` of `age1yubikey1…`; empty if age itself has this kind of key."""
        return "" if re.fullmatch(RECIPIENT, self) else self[4:].rpartition("1")[0]


class AgeIdentity(str):
    """A secret that opens sealed files: `AGE-SECRET-KEY-1…`, or how a plugin finds one."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "AgeIdentity(…)"

    @classmethod
    def generate(cls) -> "AgeIdentity":
        return cls(_library().x25519.Identity.generate())

    @classmethod
    def parse(cls, text: str, *, where: str = "", plugins: bool = False) -> "AgeIdentity":
        """Return the identity; errors never quote it."""
        if re.match(_IDENTITY, text):
            library = _library()
            try:
                library.x25519.Identity.from_str(text)
            except library.IdentityError:
                pass  # without the cause: its text may have secret characters
            else:
                return cls(text)
        elif plugins and re.match(_PLUGIN_IDENTITY, text):
            return cls(text)
        raise InvalidInputError(
            "is not an age identity", where=where, hint="'age-keygen -o FILE' writes one"
        )

    @property
    def is_plugin(self) -> bool:
        return self.startswith("AGE-PLUGIN-")

    @property
    def recipient(self) -> AgeRecipient:
        """The recipient of an identity that is not a plugin's."""
        return AgeRecipient(_library().x25519.Identity.from_str(self).to_public())


def parse_identities(data: bytes, *, where: str, plugins: bool = False) -> tuple[AgeIdentity, ...]:
    """Return the identities in a file of `age-keygen`, or with `plugins` an operator's."""
    text = data.decode("ascii", "replace")
    lines = [line for line in map(str.strip, text.splitlines()) if line and line[0] != "#"]
    if not 0 < len(lines) <= MAX_IDENTITIES:
        raise InvalidInputError(
            f"has {len(lines)} identities; 1 to {MAX_IDENTITIES} are allowed", where=where
        )
    with errors_at(where):
        return tuple(AgeIdentity.parse(line, plugins=plugins) for line in lines)


def seal(plaintext: bytes, recipient: str) -> bytes:
    """Return a binary age file that only the recipient's identity opens."""
    check_limit(len(plaintext), MAX_PLAINTEXT, what="is too large to seal")
    library = _library()
    known = AgeRecipient(recipient)
    try:
        if known.plugin:
            kind = library.plugin.Recipient.from_str(recipient)
            to = library.plugin.RecipientPluginV1(known.plugin, [kind], [], _PluginQuestions())
        else:
            to = library.x25519.Recipient.from_str(recipient)
        sealed: bytes = library.encrypt(plaintext, [to])
    except (library.RecipientError, library.EncryptError, OSError) as error:
        raise InvalidInputError(f"cannot seal to {recipient[:80]}: {error}") from error
    except BaseException as error:
        # The library panics at a key of low order: everybody could open the result.
        if type(error).__name__ != "PanicException":
            raise
        raise InvalidInputError(
            f"cannot seal to {recipient[:80]}: everybody could open it"
        ) from error
    check_form(sealed, plugins=bool(known.plugin))
    return sealed


def check_form(sealed: bytes, *, plugins: bool = False) -> None:
    """Check the size and the header of an age file, without opening it."""
    check_limit(len(sealed), _MAX_FILE, unit="bytes of age")
    head = sealed[:MAX_HEADER]
    if not re.match(_HEADER, head) and not (plugins and re.match(_PLUGIN_HEADER, head)):
        raise InvalidInputError(
            f"is not an age file for one recipient, with a header of at most {MAX_HEADER} bytes"
        )


def open_sealed(sealed: bytes, identities: Sequence[AgeIdentity]) -> bytes:
    """Return the plaintext of an age file.

    Raises:
        NotOpenedError: No identity opens it, or its bytes were changed.
    """
    plugins = any(identity.is_plugin for identity in identities)
    check_form(sealed, plugins=plugins)
    library = _library()
    try:
        plaintext: bytes = library.decrypt(sealed, [_loaded(one) for one in identities])
    except (library.DecryptError, library.IdentityError) as error:
        raise NotOpenedError("none of the identities opens it, or its bytes changed") from error
    return plaintext


def _loaded(identity: AgeIdentity) -> object:
    library = _library()
    if not identity.is_plugin:
        return library.x25519.Identity.from_str(identity)
    plugin = library.plugin.Identity.from_str(identity)
    return library.plugin.IdentityPluginV1(plugin.plugin(), [plugin], _PluginQuestions())


class _PluginQuestions:
    """What a plugin may show to the operator or ask them, as age's own program does."""

    def display_message(self, message: str) -> None:
        click.echo(one_line(message), err=True)

    def confirm(self, message: str, yes_string: str, no_string: str | None) -> bool | None:
        del no_string
        return click.confirm(f"{one_line(message)} ({one_line(yes_string)}?)", err=True)

    def request_public_string(self, description: str) -> str | None:
        return str(click.prompt(one_line(description), err=True))

    def request_passphrase(self, description: str) -> str | None:
        return str(click.prompt(one_line(description), hide_input=True, err=True))


def _library() -> Any:  # noqa: ANN401 - the library has no types
    import pyrage

    return pyrage


MAX_KEY_FILE = 16 * 1024
_KEY_NAME = "sealing.key"


class SealingKey:
    """The sealing key of this node, in the directory of its keys."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / _KEY_NAME
        self._public = directory / "sealing.pub"

    def identities(self) -> tuple[AgeIdentity, ...]:
        """Return the identities, the newest first; none if this node has no sealing key."""
        for place in (
            Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent"), _KEY_NAME),
            self.path,
        ):
            if place.exists():
                return read_identities(place)
        return ()

    def recipients(self) -> tuple[AgeRecipient, ...]:
        """Return the recipients that the node publishes, the newest first."""
        with suppress(FileNotFoundError):
            lines = self._public.read_text("ascii").split()
            return tuple(AgeRecipient(line) for line in lines if re.fullmatch(RECIPIENT, line))
        return ()

    def make(self, *, replace: bool = False) -> tuple[AgeRecipient, ...]:
        """Make the key unless there is one; return the recipients.

        `replace` puts a new key in front of the newest one, which stays.
        """
        known = self.identities()
        if replace or not known:
            known = (AgeIdentity.generate(), *known[:1])
            make_private(self.path.parent)
            text = "".join(f"# public key: {one.recipient}\n{one}\n" for one in known)
            write_durably(self.path, text.encode())
        recipients = tuple(one.recipient for one in known)
        write_durably(self._public, "".join(f"{one}\n" for one in recipients).encode(), mode=0o644)
        return recipients


def read_identities(path: Path, *, plugins: bool = False) -> tuple[AgeIdentity, ...]:
    """Return the identities in a file that only its owner can read; `plugins` for an operator's."""
    data = read_secret_file(path, what="a file of secret identities", limit=MAX_KEY_FILE)
    return parse_identities(data, where=str(path), plugins=plugins)
