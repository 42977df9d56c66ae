"""The agent's log: one printable line each, and not too many of a kind."""

import os
import re

import pytest

from localpuppet.base.machine.ports import LineKind
from localpuppet.fleet.agent.service_log import MOST, WINDOW, ServiceLog
from tests.doubles.ports import FakeClock


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


@pytest.fixture(autouse=True)
def journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the service manager's journal on standard error."""
    status = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")


@pytest.mark.parametrize("stream", ["", "1:2", "x"])
def test_a_file_gets_the_time_and_no_priority(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    """Also if the variable is that of a service whose output was redirected."""
    monkeypatch.setenv("JOURNAL_STREAM", stream)
    log = ServiceLog(FakeClock(), debug=False)
    log.info("accepted")
    log.warning("refused")
    first, second = said(capsys)
    assert re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8} accepted", first)
    assert second.endswith(" warning: refused")


def test_lines_have_their_priority_and_no_limit_for_debugging(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = ServiceLog(FakeClock(), debug=True)
    log.warning("no\x1b[31m\nroom")
    log.info("accepted")
    log.debug("seen")
    assert said(capsys) == ["<4>no\\x1b[31m\\x0aroom", "<6>accepted", "<7>seen"]
    log = ServiceLog(FakeClock(), debug=True)
    for number in range(10 * MOST):
        log.debug(f"accepted {number}", kind=LineKind.ACCEPTED)
    assert len(said(capsys)) == 10 * MOST


def test_a_flood_is_counted_and_hides_no_other_line(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    log = ServiceLog(clock, debug=False)
    for number in range(MOST + 7):
        log.info(f"accepted {number}", kind=LineKind.ACCEPTED)
    log.info("running", kind=LineKind.RUN)
    log.debug("a detail")
    assert said(capsys) == [*(f"<6>accepted {number}" for number in range(MOST)), "<6>running"]
    clock.advance(WINDOW)
    log.info("accepted one too early", kind=LineKind.ACCEPTED)
    assert said(capsys) == []
    clock.advance(1)
    log.info("run ended", kind=LineKind.RUN)
    log.info("accepted", kind=LineKind.ACCEPTED)
    expected = ["<4>left out 8 more lines about accepted triggers", "<6>run ended", "<6>accepted"]
    assert said(capsys) == expected


@pytest.mark.parametrize("kind", [kind for kind in LineKind if kind is not LineKind.STRANGER])
def test_messages_of_strangers_hide_no_line_of_another_kind(
    kind: LineKind, capsys: pytest.CaptureFixture[str]
) -> None:
    log = ServiceLog(FakeClock(), debug=False)
    for number in range(10 * MOST):
        log.warning(f"{number} dropped a trigger: no valid signature", kind=LineKind.STRANGER)
    log.warning("what matters", kind=kind)
    text = capsys.readouterr().err
    assert text.count("dropped a trigger") == MOST
    assert "what matters" in text
