"""TLS of clients: the server is verified, and a certificate shown where there is one."""

import ssl
from pathlib import Path

from localpuppet.errors import InvalidInputError


def tls_context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """Return TLS that verifies the server, and shows a client certificate if there is one.

    Raises:
        InvalidInputError: A file cannot be read, or holds something else.
    """
    where = str(ca)
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            where = str(certificate)
            context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidInputError(
            f"cannot be used for TLS: {error.strerror or error}", where=where
        ) from error
    return context
