"""asyncio's transports, as clients that get many small messages want them."""

import asyncio

READ = 64 * 1024


def read_little(transport: asyncio.BaseTransport | None) -> None:
    """Take a buffer for each read that malloc has at hand.

    asyncio's of 256 KiB is mapped and unmapped by the kernel for every message. TLS has buffers of
    its own: its transports, and what else has no such buffer, are left alone.
    """
    if transport is not None and hasattr(transport, "max_size"):
        transport.max_size = READ
