"""The log of a run: complete printable lines, truncated by a limit or a full disk."""

from functools import partial
from pathlib import Path

from localpuppet.base.formats.text import without_middle
from localpuppet.node.puppet.command_line import with_names
from localpuppet.node.runs.verdict import MAX_LOG, RunLog


def test_a_log_has_complete_lines_with_visible_escapes(tmp_path: Path) -> None:
    lines: list[str] = []
    log = RunLog(tmp_path / "log")
    for piece in (b"one\ntw", b"o\n\x1b[31mred\n", "é\n".encode()[:1], "é\n".encode()[1:]):
        log.take(piece, lines.append)
    log.take(b"Error: no class\nthe rest", lines.append)
    assert lines == ["one", "two", "\\x1b[31mred", "é", "Error: no class"]
    log.take(b"", lines.append, end=True)
    log.close()
    assert lines[-1] == "the rest"
    assert (tmp_path / "log").read_text().splitlines() == lines
    assert (log.first_error, log.cut, log.full) == ("no class", "", False)


def test_a_long_error_keeps_its_place_and_files_have_their_release_names(tmp_path: Path) -> None:
    named = partial(with_names, directories={"/var/objects/1": "dist/", "/var/releases/2": ""})
    log = RunLog(tmp_path / "log", named)
    lines: list[str] = []
    log.take(b"Error: " + b"x " * 400 + b"(file: /var/releases/2/a/b.pp, line: 3)\n", lines.append)
    log.take(b"Warning: old (file: /var/objects/1/c.pp) /var/objects/1/c.pp\n", lines.append)
    log.close()
    assert lines[1] == "Warning: old (file: dist/c.pp) /var/objects/1/c.pp"
    assert log.first_error.endswith("x (file: a/b.pp, line: 3)")
    short = without_middle(log.first_error, most=300)
    assert (len(short), short[:4]) == (300, "x x ")
    assert short.endswith("(file: a/b.pp, line: 3)")


def test_a_log_is_truncated_at_its_limit_but_all_lines_are_shown(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log")
    seen: list[int] = []
    line = b"x" * (1024 * 1024 - 1) + b"\n"
    for _ in range(MAX_LOG // len(line) + 3):
        log.take(line, lambda text: seen.append(len(text)))
    assert log.full
    assert log.cut == "the log is truncated: more than 64 MiB"
    assert MAX_LOG < (tmp_path / "log").stat().st_size <= MAX_LOG + len(line)
    assert sum(seen) > (tmp_path / "log").stat().st_size
    log.close()


def test_a_log_on_a_full_disk_is_truncated_with_a_reason() -> None:
    log = RunLog(Path("/dev/full"))
    seen: list[str] = []
    log.take(b"one\ntwo\n", seen.append)
    log.close()
    assert (seen, log.cut) == (["one", "two"], "the log is truncated: No space left on device")
