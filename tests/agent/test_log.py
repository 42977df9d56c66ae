"""The agent's log: one printable line each, and not too many."""

import pytest

from localpuppet.agent.log import MOST, WINDOW, AgentLog
from tests.doubles.ports import FakeClock


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_lines_have_their_priority(capsys: pytest.CaptureFixture[str]) -> None:
    log = AgentLog(FakeClock(), debug=True)
    log.warning("no\x1b[31m\nroom")
    log.info("accepted")
    log.debug("seen")
    assert said(capsys) == ["<4>no\\x1b[31m\\x0aroom", "<6>accepted", "<7>seen"]


def test_a_flood_hides_nothing_else_and_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    log = AgentLog(clock, debug=False)
    for number in range(MOST + 7):
        log.info(f"accepted {number}")
    log.info("running")
    log.debug("nobody wants to know")
    assert said(capsys) == [*(f"<6>accepted {number}" for number in range(MOST)), "<6>running"]
    clock.advance(WINDOW)
    log.info("accepted one too early")
    assert said(capsys) == []
    clock.advance(1)
    log.info("run ended")
    log.info("accepted")
    assert said(capsys) == [
        "<4>left out 8 more lines that begin with 'accepted'",
        "<6>run ended",
        "<6>accepted",
    ]


def test_for_debugging_there_is_no_limit(capsys: pytest.CaptureFixture[str]) -> None:
    log = AgentLog(FakeClock(), debug=True)
    for number in range(10 * MOST):
        log.debug(f"accepted {number}")
    assert len(said(capsys)) == 10 * MOST


def test_what_strangers_send_hides_no_drop_of_what_was_accepted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = AgentLog(FakeClock(), debug=False)
    for _ in range(10 * MOST):
        log.warning("dropped a trigger: no valid signature")
        log.warning("refused a request: no valid signature")
    log.warning("dropped a.example.com/3f2504e0: expired while the node was on hold: x")
    log.warning("refused the network side: no line")
    text = capsys.readouterr().err
    assert text.count("dropped a trigger") == MOST
    assert "dropped a.example.com/3f2504e0: expired" in text
    assert "refused the network side" in text
