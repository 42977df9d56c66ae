"""A certificate authority for one test, with openssl: tests of a node alone have no library."""

import subprocess
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from tests.rigs.servers import Tls

CONFIGURATION = "[req]\ndistinguished_name = name\n[name]\n"
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")


@dataclass(frozen=True)
class Identity:
    """A client's files."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates that servers and clients of a test trust."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.path = directory / "ca.pem"
        self._key = directory / "ca.key"
        extensions = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")
        self._make("tests", self.path, self._key, *extensions)

    def server(self) -> Tls:
        identity = self._issue("server", "127.0.0.1", "localhost")
        return Tls(ca=self.path, certificate=identity.certificate, key=identity.key)

    def node(self, name: str, *, at: str = "") -> Identity:
        """Issue a certificate whose CN is the node's name, for 30 days, from `at` if given."""
        return self._issue(name, name, at=at)

    def _issue(self, name: str, *names: str, at: str = "") -> Identity:
        identity = Identity(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        self._make(
            name,
            identity.certificate,
            identity.key,
            f"subjectAltName={','.join(map(_alternative, names))}",
            "basicConstraints=critical,CA:FALSE",
            "extendedKeyUsage=serverAuth,clientAuth",
            "authorityKeyIdentifier=keyid",
            signed=("-CA", str(self.path), "-CAkey", str(self._key)),
            at=at,
        )
        return identity

    def _make(
        self,
        name: str,
        certificate: Path,
        key: Path,
        *extensions: str,
        signed: tuple[str, ...] = (),
        at: str = "",
    ) -> None:
        words = ["faketime", at] if at else []
        words += ["openssl", "req", "-x509", "-config", "/dev/stdin", "-subj", f"/CN={name}", *KEY]
        for extension in ("subjectKeyIdentifier=hash", *extensions):
            words += ["-addext", extension]
        words += [*signed, "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(words, input=CONFIGURATION, text=True, capture_output=True, check=True)


def _alternative(name: str) -> str:
    try:
        return f"IP:{ip_address(name)}"
    except ValueError:
        return f"DNS:{name}"
