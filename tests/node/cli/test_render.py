"""Tables in a terminal."""

import click

from localpuppet.node.cli import render

HEAD = ("NODE", "ABOUT")


def lines(width: int | None, *about: str) -> list[str]:
    rows = [("a.example.com", text) for text in about]
    return [click.unstyle(line) for line in render.table(HEAD, rows, width=width).splitlines()]


def test_a_table_is_cut_at_the_width_of_the_terminal() -> None:
    head, short, long, exact = lines(25, "short", "a reason that is too long", "0123456789")
    assert head == "NODE           ABOUT"
    assert short == "a.example.com  short"
    assert (long, len(long)) == ("a.example.com  a reason …", 25)
    assert exact == "a.example.com  0123456789"


def test_a_table_without_a_width_is_complete() -> None:
    assert lines(None, "x" * 500)[1] == f"a.example.com  {'x' * 500}"


def test_in_a_narrow_terminal_the_longest_cell_is_cut_too() -> None:
    assert lines(20, "a reason that is too long")[1] == "a.example…  a reaso…"
    assert lines(17, "a reason that is too long")[1] == "a.example.com  a reason that is too long"


def test_a_table_omits_spare_columns_before_it_cuts_cells() -> None:
    head = ("NODE", "ENDED", "RELEASE", "ABOUT")
    rows = [("a.example.com", "3m 20s ago", "web/tags/r1", "a reason that is long")]
    text = click.unstyle(render.table(head, rows, width=40, spare=("ENDED", "RELEASE")))
    assert text.splitlines() == [
        "NODE           RELEASE      ABOUT",
        "a.example.com  web/tags/r1  a reason th…",
    ]


def test_a_count_uses_the_singular_or_plural() -> None:
    assert [render.counted(count, "class") for count in (0, 1, 2)] == [
        "0 classes",
        "1 class",
        "2 classes",
    ]
    assert render.counted(3, "repository") == "3 repositories"
    assert render.counted(2, "node") == "2 nodes"


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
