"""Sockets of clients that get many small messages: buffers of bearable size."""

import asyncio

READ = 64 * 1024


def read_little(transport: asyncio.BaseTransport | None) -> None:
    """Read in buffers of `READ` bytes, which malloc serves without asking the kernel.

    asyncio's buffer of 256 KiB is mapped and unmapped by the kernel for every message. Under TLS
    the protocol reads so. A transport without such a buffer is left alone.
    """
    for reader in (transport, getattr(transport, "_ssl_protocol", None)):
        if hasattr(reader, "max_size"):
            reader.max_size = READ  # type: ignore[union-attr]
