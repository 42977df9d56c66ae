"""Unexpected errors: localpuppet prints one line with the place of the error."""

import re

import pytest

from localpuppet.main import report_unexpected
from localpuppet.rollout.execution.changes.comparing import UnapprovedChange
from tests.rigs.node import Node


def test_an_unexpected_error_is_one_line_with_its_place_in_localpuppet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        UnapprovedChange.from_dict({})  # like a bug: no caller expects the error
    except KeyError as error:
        code = report_unexpected(error)
    (line,) = capsys.readouterr().err.splitlines()
    place = r"KeyError: '\w+', at localpuppet/rollout/execution/changes/comparing\.py:\d+"
    assert code == 70
    assert re.search(rf"{place} \(LOCALPUPPET_TRACEBACK=1", line), line


def test_an_unexpected_error_of_other_code_has_no_place_in_localpuppet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report_unexpected(KeyError("app02")) == 70
    assert "KeyError: 'app02' (LOCALPUPPET_TRACEBACK=1" in capsys.readouterr().err


def test_a_failure_to_start_a_thread_is_not_reported_as_a_bug(node: Node) -> None:
    """The stack of a thread is larger than the memory limit of the process."""
    limits = 'ulimit -s 8000000; ulimit -v 4000000; exec "$0" "$@"'
    node.settings(bus="sqlite")
    node.inside = ["/bin/sh", "-c", limits]
    refused = node.run("inventory", "facts", "os")
    assert refused.code == 1
    assert "cannot start a thread: this machine's limit of processes or memory" in refused.err
    assert "bug" not in refused.err
