"""Tables in a terminal."""

import io

import click
import pytest

from localpuppet.node.cli import render
from localpuppet.node.cli.progress_line import ProgressLine

LONG = "a reason that is too long"


@pytest.mark.parametrize(
    ("width", "about", "line"),
    [
        (25, "short", "a.example.com  short"),
        (25, LONG, "a.example.com  a reason …"),
        (25, "0123456789", "a.example.com  0123456789"),
        (20, LONG, "a.example…  a reaso…"),
        (17, LONG, f"a.example.com  {LONG}"),
        (None, "x" * 500, f"a.example.com  {'x' * 500}"),
    ],
)
def test_a_row_is_cut_at_the_width_of_the_terminal(
    width: int | None, about: str, line: str
) -> None:
    text = click.unstyle(render.table(("NODE", "ABOUT"), [("a.example.com", about)], width=width))
    assert text.splitlines()[1] == line


def test_a_table_omits_spare_columns_before_it_cuts_cells() -> None:
    head = ("NODE", "ENDED", "RELEASE", "ABOUT")
    rows = [("a.example.com", "3m 20s ago", "web/tags/r1", "a reason that is long")]
    text = click.unstyle(render.table(head, rows, width=40, spare=("ENDED", "RELEASE")))
    assert text.splitlines() == [
        "NODE           RELEASE      ABOUT",
        "a.example.com  web/tags/r1  a reason th…",
    ]


def test_a_count_uses_the_singular_or_plural() -> None:
    classes = [render.counted(count, "class") for count in (0, 1, 2)]
    assert classes == ["0 classes", "1 class", "2 classes"]
    assert render.counted(3, "repository") == "3 repositories"
    assert render.counted(2, "node") == "2 nodes"
    assert render.counted(2, "key") == "2 keys"


def test_ids_are_cut_last() -> None:
    run = "20261122T110000.000000Z-0123"
    rows = [(run, "alice of web01.example.com", "1 of 3 done")]
    text = render.table(("RUN", "BY", "NODES"), rows, width=50)
    assert text.splitlines()[1] == f"{run}  alice of …  1 of 3 …"


def test_two_long_columns_are_both_cut_but_never_a_styled_word() -> None:
    head = ("RUN", "STARTED (UTC)", "OUTCOME", "RELEASE", "DETAILS")
    styled = click.style("interrupted", fg="red") + " (noop)"
    rows = [("a063", "11-20 20:37", styled, "control/tags/2026-11-20", "a long reason")]
    text = click.unstyle(render.table(head, rows, width=60))
    assert [len(line) <= 60 for line in text.splitlines()] == [True, True]
    assert "interrupted (noop)  control/…  a long" in text


class Screen(io.StringIO):
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


def test_a_long_heading_of_the_last_column_is_cut_like_its_cells() -> None:
    head = ("NODE", "SINCE", "RELEASE", "FIRST ERROR OR REMARK")
    rows = [("web01.example.com", "2m 15s ago", "site/tags/r123", "no space left on the device")]
    wide, narrow = (
        click.unstyle(render.table(head, rows, width=width, spare=("SINCE",))) for width in (60, 45)
    )
    assert wide.splitlines() == [
        "NODE               RELEASE         FIRST ERROR OR REMARK",
        "web01.example.com  site/tags/r123  no space left on the dev…",
    ]
    assert narrow.splitlines() == [
        "NODE               RELEASE         FIRST ERR…",
        "web01.example.com  site/tags/r123  no space …",
    ]


@pytest.mark.parametrize("width", [3, 4, 9, 40])
@pytest.mark.parametrize("more", ["12s", "1,000,000 of 2,000,000 catalogs of nodes"])
def test_the_progress_line_is_one_line_of_any_terminal(
    monkeypatch: pytest.MonkeyPatch, width: int, more: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    line = ProgressLine(screen, "asks \x1b[2J\nnodes 日本語")
    line.start()
    line.show(more)
    line.stop()
    assert screen.getvalue().count("\n") == 1
    assert "\x1b[2J" not in screen.getvalue()


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


def test_text_of_others_is_one_line() -> None:
    assert render.user_text("a\nb02.example.com: ok\r\tc\x1b[2J") == (
        r"a\x0ab02.example.com: ok\x0d" "\t" r"c\x1b[2J"
    )
