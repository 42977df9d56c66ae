"""Lists in the record of a run, to which the run adds entries."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import StateError
from localpuppet.node.runs.query_record import read_listed, write_listed


@dataclass(frozen=True)
class Word:
    text: str

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "Word":
        if "text" not in raw:
            raise StateError("is damaged: a word without its text")
        return cls(raw["text"])

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text}


def test_a_written_list_reads_back_as_equal(tmp_path: Path) -> None:
    path = tmp_path / "words.json"
    assert read_listed(path, "words", Word.of) == []
    write_listed(path, "words", [Word("a"), Word("b")])
    assert read_listed(path, "words", Word.of) == [Word("a"), Word("b")]


@pytest.mark.parametrize("text", ["", "[]", '{"words": 1}', '{"words": [{}]}'])
def test_a_damaged_list_is_an_error_with_its_file_and_not_empty(tmp_path: Path, text: str) -> None:
    path = tmp_path / "words.json"
    path.write_text(text)
    with pytest.raises(StateError, match="damaged") as caught:
        read_listed(path, "words", Word.of)
    assert caught.value.where == str(path)
