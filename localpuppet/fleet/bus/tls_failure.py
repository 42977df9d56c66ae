"""Why a TLS connection to a server failed, with the certificate that is the reason.

With TLS 1.3 a server refuses a client's certificate after the handshake, often by closing the
connection without a word.
"""

import ssl
from datetime import datetime
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.anchors import read_anchor
from localpuppet.base.machine.clock import SystemClock
from localpuppet.fleet.bus.servers import Servers


def tls_failure(error: Exception, servers: Servers) -> str | None:
    """Return what failed and the certificate or authority to look at; `None` if not TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        trusted = servers.ca or "the system's authorities"
        return one_line(
            f"TLS: the server's certificate is refused: {error.verify_message} (trusted: {trusted})"
        )
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).lower().replace("_", " ")
        refused = "alert" in reason and ("certificate" in reason or "unknown ca" in reason)
        about = f"the server refuses {own_certificate(servers)}: " if refused else ""
        return one_line(f"TLS: {about}{reason}")
    return None


def lost_connection(text: str, servers: Servers) -> str:
    """Return the reason of a lost connection, with the certificate that may have caused it."""
    if not servers.tls:
        return text
    return f"{text} (the server may have refused {own_certificate(servers)})"


def own_certificate(servers: Servers) -> str:
    """Return the client's certificate for people: its file, and whether it has expired."""
    if servers.certificate is None:
        return "a client without a certificate"
    problem = certificate_problem(servers.certificate, SystemClock().now())
    return f"the certificate {servers.certificate}{f', which {problem}' if problem else ''}"


def certificate_problem(path: Path, now: datetime) -> str:
    """Return why no server accepts a certificate now, such as `expired on …`; empty if none."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(read_anchor(path))
    except (InvalidInputError, ValueError):
        return "cannot be read"
    if now > certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if now < certificate.not_valid_before_utc:
        return f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
    return ""
