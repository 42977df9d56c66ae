"""Check certificates against the revocation lists (CRLs) of the site's CAs.

- A certificate passes only if a *complete* list of its issuer is in force. Delta lists, lists for
  some certificates or reasons, lists from the future and lists with an unknown critical extension
  are not complete.
- A certificate that any list of its issuer names is revoked, even if the list is not complete.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import IntegrityError, InvalidInputError, NotInForceError
from localpuppet.base.machine.anchors import read_anchor

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, CertificateRevocationList, RevokedCertificate

_BLOCK = re.compile(b"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


class RevocationLists:
    """The revocation lists in a file.

    Args:
        path: The PEM file.
        lists: The lists in the file.
    """

    def __init__(self, path: Path, lists: "Sequence[CertificateRevocationList]") -> None:
        self._path = path
        self._lists = [(entry, _is_complete(entry)) for entry in lists]
        self._signed: dict[Certificate, list[tuple[CertificateRevocationList, bool]]] = {}

    @classmethod
    def read(cls, path: Path) -> "RevocationLists":
        """Return the lists in a file; raise `InvalidInputError` for other content."""
        from cryptography import x509

        try:
            lists = cls(path, [x509.load_pem_x509_crl(block) for block in _blocks(path)])
        except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
            raise InvalidInputError("is not a revocation list", where=str(path)) from error
        if not lists._lists:
            raise InvalidInputError("holds no revocation list", where=str(path))
        return lists

    def check(
        self, certificate: "Certificate", issuer: "Certificate", name: str, now: datetime
    ) -> None:
        """Reject a certificate that is revoked or whose status is unknown.

        Args:
            certificate: The certificate, of a signer or of a CA.
            issuer: The CA that issued it.
            name: The signer whose path it is on, for messages.
            now: The time, aware.

        Raises:
            IntegrityError: The certificate is revoked.
            NotInForceError: No complete list is in force.
        """
        own = self._signed_by(issuer)
        for entry, _ in own:
            revoked = entry.get_revoked_certificate_by_serial_number(certificate.serial_number)
            if revoked is not None and not _is_taken_back(revoked):
                raise IntegrityError(f"the certificate of {name} is revoked")
        begun = [entry for entry, complete in own if complete and entry.last_update_utc <= now]
        newest = max(begun, key=lambda entry: entry.last_update_utc, default=None)
        if newest is None or not _signs_lists(issuer):
            what = "no complete revocation list in force" if own else "no revocation list"
            raise NotInForceError(
                f"{what} of the CA of {name}", where=str(self._path), hint="fetch it from the CA"
            )
        if newest.next_update_utc is None or newest.next_update_utc < now:
            raise NotInForceError(
                f"the revocation list of the CA of {name} is out of date",
                where=str(self._path),
                hint="fetch the CA's new one",
            )

    def _signed_by(self, issuer: "Certificate") -> "list[tuple[CertificateRevocationList, bool]]":
        """Return the lists signed by a CA and whether each is complete; verify signatures once."""
        if issuer not in self._signed:
            key = issuer.public_key()
            self._signed[issuer] = [
                (entry, complete)
                for entry, complete in self._lists
                if entry.issuer == issuer.subject and entry.is_signature_valid(key)  # type: ignore[arg-type]
            ]
        return self._signed[issuer]


def _blocks(path: Path) -> list[bytes]:
    return _BLOCK.findall(read_anchor(path))


def _is_complete(entry: "CertificateRevocationList") -> bool:
    """Return whether a list covers all certificates of its issuer.

    Extensions that narrow a list are critical (RFC 5280), and so are all others that a reader must
    understand. A complete list needs no critical extension.
    """
    from cryptography.x509 import DeltaCRLIndicator, IssuingDistributionPoint

    narrow = (DeltaCRLIndicator, IssuingDistributionPoint)
    if any(
        extension.critical or isinstance(extension.value, narrow) for extension in entry.extensions
    ):
        return False
    return not any(extension.critical for revoked in entry for extension in revoked.extensions)


def _is_taken_back(revoked: "RevokedCertificate") -> bool:
    """Return whether an entry of a delta list ends a suspension."""
    from cryptography.x509 import CRLReason, ReasonFlags

    return any(
        isinstance(extension.value, CRLReason)
        and extension.value.reason is ReasonFlags.remove_from_crl
        for extension in revoked.extensions
    )


def _signs_lists(issuer: "Certificate") -> bool:
    from cryptography.x509 import ExtensionNotFound, KeyUsage

    try:
        return issuer.extensions.get_extension_for_class(KeyUsage).value.crl_sign
    except ExtensionNotFound:
        return False
