"""The facts of a run as Puppet writes them, with the corpus of bad ones."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.node.puppet.command_line import CLIENT_DATA
from localpuppet.node.puppet.report import MAX_FACTS, parse_facts, read_facts
from tests.rigs.bad_inputs import CASES

MINE = [case for case in CASES if case["kind"] == "facts_doc"]


def content(case: dict[str, Any]) -> bytes:
    text = str(case["input"])
    if case.get("encoding") == "python":
        text = eval(text)  # noqa: S307 - a file of this repository
    return b'{"name": "web01.example.com", "values": ' + text.encode() + b"}"


@pytest.mark.parametrize("case", MINE, ids=lambda case: case["id"])
def test_each_case_of_the_corpus_is_accepted_or_refused(case: dict[str, Any]) -> None:
    """tests/fleet/inventory/test_facts.py makes entries from the accepted cases."""
    if case["expect"] == "reject":
        with pytest.raises(InvalidInputError) as caught:
            parse_facts(content(case), where="facts")
        assert re.search(case["message"], str(caught.value)), str(caught.value)
        assert len(str(caught.value)) < 200
        return
    facts = parse_facts(content(case), where="facts")
    assert facts == json.loads(str(case["input"]))


def test_every_case_of_the_corpus_is_used() -> None:
    assert len(MINE) == 4


def test_missing_facts_and_bad_facts_are_different_errors(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="wrote no facts"):
        read_facts(tmp_path)
    file = tmp_path / CLIENT_DATA / "facts" / "web01.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"values": {"a": "x" * MAX_FACTS}}))
    with pytest.raises(InvalidInputError, match=r"web01\.json: is too large: .* the limit is"):
        read_facts(tmp_path)
    file.write_text(json.dumps({"values": {"a": 1}}))
    assert read_facts(tmp_path) == {"a": 1}
