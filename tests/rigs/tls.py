"""A certificate authority for one test, with trustme."""

from dataclasses import dataclass
from pathlib import Path

import trustme

from tests.rigs.servers import Tls


@dataclass(frozen=True)
class Identity:
    """A client's files."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates that servers and clients of a test trust."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = trustme.CA()
        self.path = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.path))

    def server(self) -> Tls:
        identity = self._issue("server", "127.0.0.1", "localhost")
        return Tls(ca=self.path, certificate=identity.certificate, key=identity.key)

    def node(self, name: str) -> Identity:
        """Issue a certificate whose CN is the node's name."""
        return self._issue(name, name)

    def _issue(self, name: str, *names: str) -> Identity:
        made = self._authority.issue_cert(*names, common_name=name)
        identity = Identity(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        for blob in made.cert_chain_pems:
            blob.write_to_path(str(identity.certificate), append=True)
        made.private_key_pem.write_to_path(str(identity.key))
        return identity
