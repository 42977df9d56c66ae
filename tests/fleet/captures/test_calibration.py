"""Calibration: the catalog compiled from a capture is the one that the node compiled itself."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from localpuppet.node.preview.stored_results import request_of
from tests.fleet.captures.calibrating import CalibratedNode, differences, make_calibrated
from tests.node.preview.rig import compile_all, make_engine
from tests.rigs.fleet import Fleet
from tests.rigs.long import with_sample

pytestmark = pytest.mark.puppet
# Bytes of a capture: facts, an input, some answers.
LARGEST = 64 * 1024


def applied(node: CalibratedNode) -> None:
    done = node.member.run("apply")
    assert done.code == 0, done.out + done.err


@pytest.mark.parametrize("count", with_sample([7, 20], 7))
def test_a_capture_compiles_to_the_catalog_of_the_node(
    fleet: Fleet, tmp_path: Path, count: int
) -> None:
    nodes = [make_calibrated(fleet, number, tmp_path) for number in range(count)]
    names = "".join(f"{node.name}\tNotify\t*\n" for node in nodes)
    for node in nodes:
        node.member.node.write("policies/collect.policy", names)
    asking = [node for node in nodes if node.role == "lb"]  # they ask the others
    with ThreadPoolExecutor(4) as pool:
        for group in ([node for node in nodes if node not in asking], asking):
            list(pool.map(applied, group))
    captures = {node.name: node.capture() for node in nodes}
    for capture in captures.values():
        assert b"CANARY" not in capture.to_bytes()
        assert len(capture.to_bytes()) < LARGEST
    engine = make_engine(tmp_path / "engine", processes=os.cpu_count() or 1)
    release = nodes[0].release  # all have the same
    requests = [request_of(capture, release.enc) for capture in captures.values()]
    results = compile_all(engine, release, requests)
    unequal = {}
    for node in nodes:
        compiled = results[node.name].catalog
        assert compiled is not None, (node.name, node.role, results[node.name].failure)
        found = differences(node.own_catalog(), compiled)
        assert {str(reference) for reference in node.withheld} <= set(found), node.name
        for reference in node.withheld:
            del found[str(reference)]
        if found:
            unequal[f"{node.name} ({node.role})"] = found
    assert unequal == {}
