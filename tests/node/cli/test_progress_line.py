"""The line below a verb's output, on a terminal of a width."""

import io

import pytest

from localpuppet.node.cli import render
from localpuppet.node.cli.progress_line import ProgressLine


class Screen(io.StringIO):
    """A terminal, as far as it is one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "title", ["a title that is far longer than the terminal is wide", "[short]"]
)
def test_it_is_one_line_however_narrow_the_terminal_is(
    monkeypatch: pytest.MonkeyPatch, title: str
) -> None:
    """With a second line rich erases the line above, where output stands."""
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
    assert shown.count("\n") == 2, "one line a stop"
    assert (title if len(title) < 20 else "a title that is far lo…") in shown
    assert "12s" in shown


def test_a_note_does_not_begin_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What prepares a run only notes: its line would stay, and another one draws below it."""
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    observer = render.Terminal("prepares")
    observer.note("rolled back")
    assert screen.getvalue() == "# rolled back\n"
    observer.begin()
    observer.note("another")
    observer.close()
    assert "prepares" in screen.getvalue().partition("# another\n")[2], "it is drawn again"
