"""Unpack zlib data from outside within a size limit."""

import zlib


class TooMuchError(ValueError):
    """The unpacked data exceeds the caller's limit."""


def unpacked(data: bytes, *, most: int) -> bytes:
    """Return the unpacked data, and never hold more than `most` bytes of it.

    Raises:
        TooMuchError: The data is larger.
        ValueError: The bytes are not one whole zlib stream.
    """
    stream = zlib.decompressobj()
    try:
        data_out = stream.decompress(data, most)
    except zlib.error as error:
        raise ValueError("not packed with zlib") from error
    if stream.unconsumed_tail:
        raise TooMuchError(f"more than {most} bytes come out of {len(data)}")
    if not stream.eof or stream.unused_data:
        raise ValueError("not one whole zlib stream")
    return data_out
