"""How commands show replies."""

from datetime import UTC, datetime
from typing import Any

import click
import pytest

from localpuppet.base.formats.converter import to_record
from localpuppet.base.formats.names import RunId
from localpuppet.fleet.cli.requests import MARGIN, shown_reply
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.cli.history import title
from localpuppet.node.puppet.resources import ReportedResource, ResourceResult
from tests.fleet.make import an_end

NOW = datetime(2026, 11, 20, 20, 43, tzinfo=UTC)
HOLD = {"owner": "ci", "reason": "rollout 42", "since": "2026-11-20T20:00:00Z", "until": None}
SHOWN = "rollout 42 (held by ci since 2026-11-20 20:00 UTC)"
RUN = RunId("20261120T204226.399298Z-170d")
ENDED = datetime(2026, 11, 20, 20, 42, 29, tzinfo=UTC).timestamp()
LAST = to_record(an_end(ENDED, Kind.CHANGED, release="web/tags/r1", run=RUN))
STATE: dict[str, Any] = {
    **{"schema": 1, "node": "a.example.com", "at": "2026-11-20T20:42:59Z", "version": "0.1.0"},
    **{"state": "idle", "cause": None, "waiting": 0, "holds": [], "last_run": LAST},
    **{"release_digest": None, "outcomes": []},
}


def test_the_status_of_a_rolled_back_node_shows_the_release_of_its_input() -> None:
    decision = {"input_release": "web/tags/r3", "release": "web/tags/r2", "run": "x"}
    decision |= {"user": "root", "since": "2026-11-20T20:00:00Z"}
    said = {**STATE, "rollback": decision}
    _, lines = shown_reply("status", said, NOW)
    assert "rolled back to web/tags/r2 by root at " in lines
    assert "UTC, not applied yet; the input names web/tags/r3" in lines
    applied = {**said, "last_run": {**LAST, "release": "web/tags/r2"}}
    assert "not applied yet" not in shown_reply("status", applied, NOW)[1]


def test_a_hold_of_the_puppet_agent_has_no_time_and_is_shown_in_short() -> None:
    hold = {"owner": "puppet agent --disable", "reason": "work", "since": "", "until": None}
    line = "On hold  work (held by puppet agent --disable)"
    held = {**STATE, "state": "on hold", "holds": [hold]}
    word, lines = map(click.unstyle, shown_reply("status", held, NOW))
    assert (word, lines.splitlines()[-1].strip()) == ("on hold", line)
    word, lines = map(click.unstyle, shown_reply("enable", {"ended": [], "holds": [hold]}, NOW))
    assert (word, lines.strip()) == ("you had no hold here", line)


def test_a_short_hold_is_shown_with_seconds() -> None:
    (line,) = shown_reply("disable", {"hold": {**HOLD, "until": "2026-11-20T20:00:30Z"}}, NOW)[:1]
    assert "since 2026-11-20 20:00:00 UTC until 2026-11-20 20:00:30 UTC" in line


GIVEN = {"release": "web/tags/r3", "serial": 4, "by": "choria=alice", "rollout": ""}
WAITS = {"release": "web/tags/r3", "stage": "pending", "reason": "the bus does not answer"}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            {"assignment": {**GIVEN, "at": "2026-11-20T20:00:00Z"}},
            "web/tags/r3 by choria=alice at 2026-11-20 20:00:00 UTC (serial 4)",
        ),
        ({"confirmation": WAITS}, "web/tags/r3 pending (the bus does not answer)"),
    ],
)
def test_the_status_shows_assignment_and_confirmation(more: dict[str, Any], text: str) -> None:
    _, lines = shown_reply("status", {**STATE, **more}, NOW)
    assert text in lines
    assert ("Confirmation" in lines) is ("confirmation" in more)


@pytest.mark.parametrize(
    ("action", "result", "word", "lines"),
    [
        ("runonce", {"accepted": True}, "accepted", []),
        ("disable", {"hold": HOLD}, f"on hold: {SHOWN}", []),
        ("enable", {"ended": [HOLD], "holds": []}, f"ended: {SHOWN}", []),
        ("enable", {"ended": [], "holds": []}, "you had no hold here", []),
        ("enable", {"ended": [], "holds": [HOLD]}, "you had no hold here", [f"On hold  {SHOWN}"]),
        ("log", {"run": "1", "lines": ["Notice: a", "b"], "before": 7, "left_out": 1}, "ok",
         ["run 1", "… 7 lines before this", "Notice: a", "b", "left out: 1 line of diffs"]),
        ("status", STATE, "idle", ["Last run  changed, 31s ago  [run 20261120T204226.399298Z-170d]",
         "Release   web/tags/r1", "Version   0.1.0"]),
        ("status", STATE | {"state": "on hold", "waiting": 2, "last_run": None, "holds": [HOLD]},
         "on hold", ["Waiting  2 causes", "Version  0.1.0", f"On hold  {SHOWN}"]),
    ],
)  # fmt: skip
def test_each_reply_has_its_summary_and_lines(
    action: str, result: dict[str, Any], word: str, lines: list[str]
) -> None:
    shown, below = shown_reply(action, result, NOW)
    assert (click.unstyle(shown), click.unstyle(below).splitlines()) == (word, lines)


@pytest.mark.parametrize(
    ("action", "result"),
    [
        ("status", {"state": "idle"}),
        ("disable", {"hold": "x"}),
        ("enable", {}),
        ("runonce", {"accepted": "soon"}),
        ("status", STATE | {"last_run": {"outcome": 7}}),
        ("log", {"run": "1", "lines": [1]}),
        ("report", {"run": {}, "failed": [{"resource": "File[/x]"}]}),
    ],
)
def test_a_reply_of_another_version_is_shown_unchanged(action: str, result: dict[str, Any]) -> None:
    shown, below = shown_reply(action, result, NOW)
    assert click.unstyle(shown) == "ok"
    for key in result:
        assert f"{key}: " in below or f"{key}:\n" in below


def test_replies_cannot_control_the_terminal() -> None:
    evil = STATE | {"version": "\x1b[2J", "last_run": LAST | {"release": "a\x1b]0;x\x07"}}
    shown, below = shown_reply("status", evil, NOW)
    assert "\x1b[2J" not in shown + below
    assert "\x1b]" not in shown + below
    lines = ["Notice: \x1b[2J", "\x1b]0;x\x07"]
    said = {"run": "\x1b[2J", "lines": lines, "before": 0, "left_out": 0}
    shown, below = shown_reply("log", said, NOW)
    assert "\x1b[2J" not in below
    assert "\x1b]" not in below


@pytest.mark.parametrize("key", ["owner", "reason", "until"])
def test_a_reply_cannot_invent_the_line_of_another_node(key: str) -> None:
    hold = HOLD | {key: "x\nweb02.example.com: accepted\r\u2028"}
    for action, said in (("disable", {"hold": hold}), ("enable", {"ended": [hold], "holds": []})):
        shown, _ = shown_reply(action, said, NOW)
        assert len(shown.splitlines()) == 1


def test_the_title_of_a_resource_fits_its_line() -> None:
    where: dict[str, Any] = {"file": "", "line": None, "place": "", "time": "", "events": ()}
    name = f"File[/srv/{'x' * 80}]"
    resource = ReportedResource(resource=name, result=ResourceResult.FAILED, seconds=0.024, **where)
    assert len(click.unstyle(title(resource))) == 80
    assert len(click.unstyle(title(resource, margin=MARGIN))) == 80 - MARGIN
