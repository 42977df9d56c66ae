"""Values that localpuppet builds from files, and builds again when a file changes."""

from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.machine.files import ReloadedFiles


def test_a_value_is_built_again_only_when_a_file_has_changed(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("a")
    other.write_text("b")
    made: list[str] = []

    def make() -> str:
        made.append(one.read_text() + other.read_text())
        return made[-1]

    found = ReloadedFiles([one, other], make)
    assert [found(), found()] == ["ab", "ab"]
    other.write_text("changed")
    assert found() == "achanged"
    assert made == ["ab", "achanged"]


def test_a_value_of_a_removed_file_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("a")
    found = ReloadedFiles([file], file.read_text)
    assert found() == "a"
    file.unlink()
    with pytest.raises(InvalidInputError, match="cannot be read"):
        found()


def test_a_build_that_failed_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("12")
    answers = iter([ValueError("half written"), None])

    def make() -> int:
        answer = next(answers)
        if answer is not None:
            raise answer
        return int(file.read_text())

    found = ReloadedFiles([file], make)
    with pytest.raises(ValueError, match="half written"):
        found()
    assert found() == 12
