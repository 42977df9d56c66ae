"""A CA as Puppet Server makes it: root and intermediate, each with a revocation list."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.doubles.ports import FakeClock

NOW = FakeClock().now()
DAY = timedelta(days=1)
# Puppet Server writes this extension into each certificate: Netscape's comment.
COMMENT = x509.UnrecognizedExtension(
    x509.ObjectIdentifier("2.16.840.1.113730.1.13"), b"\x16\x1cPuppet Server Internal Certificate"
)
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@lru_cache(maxsize=8)
def rsa_key(number: int = 0, bits: int = 2048) -> rsa.RSAPrivateKey:
    """Return the RSA key of a number; making a key is slow, so each is made once."""
    return rsa.generate_private_key(65537, bits)


def named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


Extensions = Sequence[tuple[x509.ExtensionType, bool]]  # each with whether it is critical


def usage(*, signs: bool, authority: bool = False, lists: bool | None = None) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=signs,
        key_encipherment=not authority,
        key_cert_sign=authority,
        crl_sign=authority if lists is None else lists,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def pem(key: PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@dataclass
class Issued:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: PrivateKey

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def text(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


@dataclass
class Ca:
    """A CA; `parent` makes it an intermediate one."""

    name: str = "Puppet CA: ca.example.com"
    parent: "Ca | None" = None
    key: PrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    since: datetime = NOW - 500 * DAY
    until: datetime = NOW + 1000 * DAY
    path_length: int | None = None
    lists: bool = True
    extensions: Extensions = ()
    certificate: x509.Certificate = field(init=False)

    def __post_init__(self) -> None:
        issuer = self.parent or self
        builder = x509.CertificateBuilder()
        for extension, critical in self.extensions:
            builder = builder.add_extension(extension, critical=critical)
        constraints = x509.BasicConstraints(ca=True, path_length=self.path_length)
        self.certificate = (
            builder.subject_name(named(self.name))
            .issuer_name(named(issuer.name))
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.since)
            .not_valid_after(self.until)
            .add_extension(constraints, critical=True)
            .add_extension(usage(signs=False, authority=True, lists=self.lists), critical=True)
            # Python from 3.13 on refuses a chain without these.
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()),
                critical=False,
            )
            .sign(issuer.key, hashes.SHA256())
        )

    @property
    def text(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def issue(
        self,
        name: str,
        *,
        key: PrivateKey | None = None,
        since: datetime = NOW - DAY,
        until: datetime = NOW + 100 * DAY,
        authority: bool = False,
        signs: bool = True,
        purpose: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
        subject: x509.Name | None = None,
        critical: bool = False,
        dns: Sequence[str] = (),
        also: Sequence[x509.GeneralName] = (),
    ) -> Issued:
        """Return a certificate as Puppet Server issues it, with the changes of the test."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        builder = x509.CertificateBuilder()
        if dns or also:
            names = x509.SubjectAlternativeName([*(x509.DNSName(one) for one in dns), *also])
            builder = builder.add_extension(names, critical=False)
        certificate = (
            builder.subject_name(subject or named(name))
            .issuer_name(named(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(since)
            .not_valid_after(until)
            .add_extension(COMMENT, critical=critical)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, purpose])
                if purpose != ExtendedKeyUsageOID.SERVER_AUTH
                else x509.ExtendedKeyUsage([purpose]),
                critical=True,
            )
            .add_extension(usage(signs=signs), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        return Issued(certificate, key)

    def revoke(
        self,
        *certificates: x509.Certificate,
        last_update: datetime = NOW - DAY,
        next_update: datetime = NOW + DAY,
        extensions: Extensions = (),
        of_entries: Extensions = (),
    ) -> bytes:
        """Return this CA's revocation list."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(named(self.name))
            .last_update(last_update)
            .next_update(next_update)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        for certificate in certificates:
            entry = (
                x509.RevokedCertificateBuilder()
                .serial_number(certificate.serial_number)
                .revocation_date(NOW - DAY)
            )
            for extension, critical in of_entries:
                entry = entry.add_extension(extension, critical=critical)
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def write(path: Path, *parts: bytes, mode: int = 0o644) -> Path:
    path.write_bytes(b"".join(parts))
    path.chmod(mode)
    return path
