"""Cached texts of entries."""

from localpuppet.fleet.inventory.text_cache import TextCache


class Writer:
    """Writes texts of four characters, and counts."""

    count = 0

    def __call__(self) -> str:
        self.count += 1
        return f"{self.count:04}"


def test_a_text_is_written_once_for_the_same_bytes() -> None:
    written, write = TextCache(), Writer()
    assert [written.text(token, write) for token in (b"a", b"b", b"a")] == ["0001", "0002", "0001"]


def test_the_least_recently_used_text_is_dropped_first() -> None:
    written, write = TextCache(most=8), Writer()
    for token in (b"a", b"b", b"a", b"c"):
        written.text(token, write)
    assert [written.text(token, write) for token in (b"a", b"c", b"b")] == ["0001", "0003", "0004"]


def test_a_text_that_is_larger_than_all_room_is_not_kept() -> None:
    written, write = TextCache(most=3), Writer()
    assert [written.text(b"a", write) for _ in range(2)] == ["0001", "0002"]
