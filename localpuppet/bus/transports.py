"""asyncio's transports, as clients that get many small messages want them."""

import asyncio

READ = 64 * 1024


def read_little(transport: asyncio.BaseTransport | None) -> None:
    """Take a buffer for each read that malloc has at hand.

    asyncio's of 256 KiB is mapped and unmapped by the kernel for every message. Under TLS it is the
    protocol that reads so. What has no such buffer is left alone.
    """
    for reader in (transport, getattr(transport, "_ssl_protocol", None)):
        if hasattr(reader, "max_size"):
            reader.max_size = READ  # type: ignore[union-attr]
