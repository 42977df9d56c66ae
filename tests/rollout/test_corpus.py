"""The corpus of sites, each against the program as users call it, under a memory limit."""

import re
from typing import Any

import pytest

from tests.rigs.bad_inputs import CASES
from tests.rigs.node import Node
from tests.test_bad_inputs import cases, content, judge, run_limited, tree

# Choria's fixture of a cycle has no cycle between components: each application alone has a plan.
# Choria refused it because it orders whole nodes; here two nodes run twice, and a note says so.
ORDERED = "sp-cyclic"


@pytest.mark.parametrize("case", [one for one in cases("site_plan") if one.id != ORDERED])
def test_corpus(node: Node, case: dict[str, Any]) -> None:
    path = node.write("environment.json", content(case).decode())
    narrowing = []
    if instance := re.search(r"--application '(.*)'", case.get("context", "")):
        narrowing = ["--instance", instance[1]]
    before = tree(node.root)
    done = run_limited(node, ["rollout", "plan", "--site", str(path), *narrowing])
    judge(case, done)
    assert done.code == (0 if case["expect"] == "accept" else 2)
    assert tree(node.root) == before, "a plan writes nothing"


def test_a_cycle_for_choria_is_a_plan_with_a_note(node: Node) -> None:
    (case,) = (one for one in CASES if one["id"] == ORDERED)
    path = node.write("environment.json", content(case).decode())
    done = node.run("rollout", "plan", "--site", str(path), code=0)
    assert re.search(case["message"], done.err)
    assert "dev1.devco.net, dev3.devco.net run more than once" in done.err
    assert done.out.count("\tdev1.devco.net (run 1 of 2)\n") == 1
    assert done.out.count("\tdev1.devco.net (run 2 of 2)\n") == 1


def test_the_corpus_has_the_expected_number_of_cases() -> None:
    assert len(cases("site_plan")) == 9
