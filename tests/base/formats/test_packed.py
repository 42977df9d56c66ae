"""Packed bytes of strangers: whole, or refused before they are large."""

import zlib

import pytest

from localpuppet.base.formats.packed import TooMuchError, unpacked


def test_what_was_packed_comes_out_up_to_the_bound() -> None:
    assert unpacked(zlib.compress(b"x" * 100), most=100) == b"x" * 100
    with pytest.raises(TooMuchError, match="more than 99 bytes come out of"):
        unpacked(zlib.compress(b"x" * 100 + b"y" * 2**20), most=99)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not one whole zlib stream"),
        (b"rubbish", "not packed with zlib"),
        (zlib.compress(b"x")[:-1], "not one whole zlib stream"),
        (zlib.compress(b"x") + b"more", "not one whole zlib stream"),
    ],
)
def test_what_is_not_one_whole_stream_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        unpacked(data, most=100)
