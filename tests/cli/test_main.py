"""The last resort of the program: what nobody foresaw is one line, and says where it came up."""

import re
from pathlib import Path

import pytest

from localpuppet.cli.main import main
from localpuppet.wiring.node import NodeWiring


def test_a_bug_of_ours_is_one_line_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(node: NodeWiring) -> None:
        raise KeyError(type(node).__name__)

    monkeypatch.delenv("LOCALPUPPET_TRACEBACK", raising=False)
    monkeypatch.setattr(NodeWiring, "settings", property(broken))
    assert main(["--root", str(tmp_path), "status"]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    place = r"KeyError: 'NodeWiring', at localpuppet/\w+/\w+\.py:\d+ \(LOCALPUPPET_TRACEBACK=1"
    assert re.search(place, line), line
