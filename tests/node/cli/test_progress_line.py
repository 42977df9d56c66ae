"""The progress line below a command's output on a terminal."""

import io

import pytest

from localpuppet.node.cli import render
from localpuppet.node.cli.progress_line import ProgressLine


class Screen(io.StringIO):
    """A stream that reports to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "title", ["a title that is far longer than the terminal is wide", "[short]"]
)
def test_the_progress_line_fits_into_one_line_of_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, title: str
) -> None:
    """With a second line, rich would erase the line above, which has output."""
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    line = ProgressLine(screen, "begins")
    line.start()
    line.title = lambda: title
    line.show("12s")
    line.stop()
    line.start()
    line.stop()
    shown = screen.getvalue()
    assert shown.count("\n") == 2, "each stop writes one line"
    assert (title if len(title) < 20 else "a title that is far lo…") in shown
    assert "12s" in shown


def test_a_note_does_not_start_the_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing a run only writes notes: its line would stay above the line of the run."""
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    observer = render.Terminal("prepares")
    observer.note("rolled back")
    assert screen.getvalue() == "# rolled back\n"
    observer.begin()
    observer.note("another")
    observer.close()
    assert "prepares" in screen.getvalue().partition("# another\n")[2], "the line is drawn again"
