"""The sealing key of a node: identities in one file, and their recipients beside it.

- `keys init` makes it. A machine that does not exist yet may get a file of `age-keygen` instead.
- While a node changes its key, the file has two: the new one first. Both are in its signed entry.
- systemd can hand it over decrypted (`LoadCredentialEncrypted=sealing.key`, which systemd-creds
  encrypts to the machine): that file counts first.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from localpuppet.base.machine.files import make_private, read_secret_file, write_durably
from localpuppet.node.sealed.age import RECIPIENT, AgeIdentity, AgeRecipient, parse_identities

MAX_KEY_FILE = 16 * 1024
NAME = "sealing.key"


class SealingKey:
    """The sealing key of this node, in the directory of its keys."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self._public = directory / "sealing.pub"

    def identities(self) -> tuple[AgeIdentity, ...]:
        """Return the identities, the newest first; none if this node has no sealing key."""
        for place in (
            Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent"), NAME),
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
