"""How a node deals with other nodes: its identity, and what it trusts, shares and accepts.

This module has the keys `identity`, `trusted`, `policy`, `inventory`, `exports`, `capture`,
`socket` and `kick` of `localpuppet.yaml`, and their defaults.
"""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import SignerName
from localpuppet.base.formats.records import JsonRecord
from localpuppet.base.value import Value
from localpuppet.fleet.settings.inventory import InventorySettings, inventory_settings
from localpuppet.node.settings import SYSTEM_ROOT, SettingsFile

if TYPE_CHECKING:
    # All commands read the settings; only those that keep or send captures withhold values.
    from localpuppet.node.preview.capture import WithheldKeys

SYSTEM_SOCKET = Path("/run/localpuppet/agent.sock")
# The maximum number of bytes in the path of a UNIX socket (unix(7)).
MAX_SOCKET = 107


class IdentitySettings(JsonRecord):
    """The name and key with which this node signs, and the CA whose certificates it trusts.

    Attributes:
        name: The signer's name; `None` for the certificate's, or the node's.
        certificate: The key's certificate by the site's CA; `None` for a key that others have
            pinned.
        ca: The CA whose certificates are identities; `None` for no CA.
        crl: The CA's revocation list; `None` for no list.
    """

    name: SignerName | None = None
    key: Path
    certificate: Path | None = None
    ca: Path | None = None
    crl: Path | None = None


class CaptureSettings(JsonRecord):
    """What a capture of this node contains.

    Attributes:
        show: Patterns of names whose values are not.
    """

    withhold: tuple[str, ...]
    show: tuple[str, ...]

    @property
    def keys(self) -> "WithheldKeys":
        """The names whose values are withheld."""
        from localpuppet.node.preview.capture import DEFAULT_PATTERNS, WithheldKeys

        return WithheldKeys((*DEFAULT_PATTERNS, *self.withhold), self.show)


class PeerSettings(Value):
    """How a node deals with other nodes.

    Attributes:
        identity: How this node signs.
        trusted: The directory of pinned keys.
        policy: The file that allows actions on this node to other signers.
        inventory: What this node publishes, and how long entries of others count.
        collect_policy: The file that limits which exported resources this node takes.
        capture: What a capture of this node contains.
        socket: The agent's socket for Puppet.
        kick_always: Whether each run kicks, and not only one that changed something.
    """

    identity: IdentitySettings
    trusted: Path
    policy: Path
    inventory: InventorySettings
    collect_policy: Path
    capture: CaptureSettings
    socket: Path
    kick_always: bool


def peer_settings(file: SettingsFile) -> PeerSettings:
    """Return how a node deals with other nodes."""
    root, full = file.root, file.full
    settings = PeerSettings(
        identity=_identity(file),
        trusted=root / full["trusted"],
        policy=root / full["policy"],
        inventory=inventory_settings(file),
        collect_policy=root / full["exports"]["policy"],
        capture=file.section(CaptureSettings, "capture"),
        socket=root / full.get("socket", _socket(root, file.state)),
        kick_always=full["kick"] == "always",
    )
    if len(os.fsencode(settings.socket)) > MAX_SOCKET:
        raise InvalidInputError(
            f"the agent's socket {settings.socket} has more than {MAX_SOCKET} bytes",
            where=str(file.path),
            hint="'socket: /run/…' names a shorter one",
        )
    return settings


def _socket(root: Path, state: Path) -> Path:
    """Return the socket of a root's agent: below its state if the name is short enough."""
    if root == SYSTEM_ROOT:
        return SYSTEM_SOCKET
    path = state / "agent.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET:
        return path
    return SYSTEM_SOCKET.parent / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:16]}.sock"


def _identity(file: SettingsFile) -> IdentitySettings:
    body = file.raw.get("identity", {})
    for key, needed in (("certificate", "key"), ("certificate", "ca"), ("crl", "ca")):
        if key in body and needed not in body:
            raise InvalidInputError(f"{key} needs {needed}, too", where=f"{file.path}: identity")
    return file.section(IdentitySettings, "identity", key=str(file.state / "keys" / "node.pem"))
