"""Sockets of clients that get many small messages: TLS that verifies, buffers of bearable size."""

import asyncio
import ssl
from pathlib import Path

from localpuppet.errors import InvalidInputError

READ = 64 * 1024


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


def read_little(transport: asyncio.BaseTransport | None) -> None:
    """Read in buffers of `READ` bytes, which malloc serves without asking the kernel.

    asyncio's buffer of 256 KiB is mapped and unmapped by the kernel for every message. Under TLS
    the protocol reads so. A transport without such a buffer is left alone.
    """
    for reader in (transport, getattr(transport, "_ssl_protocol", None)):
        if hasattr(reader, "max_size"):
            reader.max_size = READ  # type: ignore[union-attr]
