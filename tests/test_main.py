"""The last resort of the program: what nobody foresaw is one line, and says where it came up."""

import re

import pytest

from localpuppet.main import report_unexpected
from localpuppet.rollout.execution.changes.approval import Approval
from tests.rigs.node import Node


def test_a_bug_of_ours_is_one_line_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        Approval.from_dict({})  # a bug would be not to expect that
    except KeyError as error:
        code = report_unexpected(error)
    (line,) = capsys.readouterr().err.splitlines()
    place = r"KeyError: '\w+', at localpuppet/rollout/execution/changes/approval\.py:\d+"
    assert code == 70
    assert re.search(rf"{place} \(LOCALPUPPET_TRACEBACK=1", line), line


def test_what_came_up_elsewhere_has_no_place_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_unexpected(KeyError("app02")) == 70
    assert "KeyError: 'app02' (LOCALPUPPET_TRACEBACK=1" in capsys.readouterr().err


def test_running_out_of_threads_is_not_called_a_bug(node: Node) -> None:
    """The stacks of threads are larger than the memory that the process may have."""
    limits = 'ulimit -s 8000000; ulimit -v 4000000; exec "$0" "$@"'
    node.settings(bus="sqlite")
    node.inside = ["/bin/sh", "-c", limits]
    refused = node.run("inventory", "facts", "os")
    assert refused.code == 1
    assert "cannot start a thread: this machine's limit of processes or memory" in refused.err
    assert "bug" not in refused.err
