"""Bytes that somebody else packed with zlib, taken apart within a bound.

Owns: that no more is ever held than a caller allows. Refuses to know: what the bytes say.
"""

import zlib


class TooMuchError(ValueError):
    """More comes out than a caller allows."""


def unpacked(data: bytes, *, most: int) -> bytes:
    """Return what was packed, without ever holding more than `most` bytes of it.

    Raises:
        TooMuchError: More than that comes out.
        ValueError: The bytes are not one whole zlib stream.
    """
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, most)
    except zlib.error as error:
        raise ValueError("not packed with zlib") from error
    if stream.unconsumed_tail:
        raise TooMuchError(f"more than {most} bytes come out of {len(data)}")
    if not stream.eof or stream.unused_data:
        raise ValueError("not one whole zlib stream")
    return found
