"""How many lines the agent's log takes, and of which none may be lost to others."""

import pytest

from localpuppet.cli.agent_log import MOST, AgentLog


def test_a_storm_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    log = AgentLog(debug=False)
    for number in range(10 * MOST):
        log.info(f"accepted a trigger {number}")
    log.info("running for a storm")
    assert len(capsys.readouterr().err.splitlines()) == MOST + 1


def test_what_strangers_send_hides_no_drop_of_what_was_accepted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = AgentLog(debug=False)
    for _ in range(10 * MOST):
        log.warning("dropped a trigger: no valid signature")
        log.warning("refused a request: no valid signature")
    log.warning("dropped a.example.com/3f2504e0: expired while the node was on hold: x")
    log.warning("refused the network side: no line")
    said = capsys.readouterr().err
    assert said.count("dropped a trigger") == MOST
    assert "dropped a.example.com/3f2504e0: expired" in said
    assert "refused the network side" in said
