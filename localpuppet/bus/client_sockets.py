"""Sockets of clients that get many small messages: TLS that verifies, buffers of bearable size."""

import asyncio
import ssl
from contextlib import ExitStack
from pathlib import Path

from localpuppet.errors import InvalidInputError
from localpuppet.machine.anchors import open_anchor

READ = 64 * 1024


def tls_context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """Return TLS that verifies the server, and shows a client certificate if there is one.

    Raises:
        InvalidInputError: A file is refused (see `open_anchor`), or holds something else.
    """
    where = str(ca)
    try:
        with ExitStack() as opened:

            def checked(path: Path) -> str:
                file = opened.enter_context(open_anchor(path))
                return f"/proc/self/fd/{file.fileno()}"

            context = ssl.create_default_context(cafile=None if ca is None else checked(ca))
            if certificate is not None:
                where = str(certificate)
                own = None if key is None else checked(key)
                context.load_cert_chain(checked(certificate), own)
            return context
    except OSError as error:  # ssl.SSLError is one
        raise InvalidInputError(
            f"cannot be used for TLS: {error.strerror or error}", where=where
        ) from error


def read_little(transport: asyncio.BaseTransport | None) -> None:
    """Read in buffers of `READ` bytes, which malloc serves without asking the kernel.

    asyncio's buffer of 256 KiB is mapped and unmapped by the kernel for every message. Under TLS
    the protocol reads so. A transport without such a buffer is left alone.
    """
    for reader in (transport, getattr(transport, "_ssl_protocol", None)):
        if hasattr(reader, "max_size"):
            reader.max_size = READ  # type: ignore[union-attr]
