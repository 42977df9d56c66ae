"""Read buffers for clients that get many small messages."""

import asyncio

READ = 64 * 1024


def read_little(transport: asyncio.BaseTransport | None) -> None:
    """Set the read buffer to `READ` bytes, which malloc serves without a system call.

    The kernel maps and unmaps asyncio's buffer of 256 KiB for every message. Under TLS, the
    protocol object has the buffer. A transport without such a buffer is left unchanged.
    """
    for reader in (transport, getattr(transport, "_ssl_protocol", None)):
        if hasattr(reader, "max_size"):
            reader.max_size = READ  # type: ignore[union-attr]
