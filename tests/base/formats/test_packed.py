"""Compressed bytes from other machines: complete, or refused before they become large."""

import zlib

import pytest

from localpuppet.base.formats.packed import TooMuchError, unpacked


def test_bytes_are_unpacked_up_to_the_limit() -> None:
    assert unpacked(zlib.compress(b"x" * 100), most=100) == b"x" * 100
    with pytest.raises(TooMuchError, match="more than 99 bytes come out of"):
        unpacked(zlib.compress(b"x" * 100 + b"y" * 2**20), most=99)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not one whole zlib stream"),
        (b"rubbish", "not packed with zlib"),
        (zlib.compress(b"x")[:-1], "not one whole zlib stream"),
        (zlib.compress(b"x") + b"more", "not one whole zlib stream"),
    ],
)
def test_anything_but_one_complete_stream_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        unpacked(data, most=100)
