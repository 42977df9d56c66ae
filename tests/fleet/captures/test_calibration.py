"""Calibration: the catalog compiled from a capture is the one that the node compiled itself."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from localpuppet.node.preview.finding import request_of
from tests.fleet.captures.calibrating import CalibratedNode, differences, make_calibrated
from tests.node.preview.engine_rig import compile_all, make_engine
from tests.rigs.fleet import Fleet
from tests.rigs.long import with_sample

pytestmark = pytest.mark.puppet


def applied(node: CalibratedNode) -> None:
    done = node.member.run("apply")
    assert done.code == 0, done.out + done.err


@pytest.mark.parametrize("count", with_sample([7, 20], 7))
def test_a_capture_compiles_to_the_catalog_of_the_node(
    fleet: Fleet, tmp_path: Path, count: int, record_property: Callable[[str, object], None]
) -> None:
    nodes = [make_calibrated(fleet, number, tmp_path) for number in range(count)]
    names = "".join(f"{node.name}\tNotify\t*\n" for node in nodes)
    for node in sorted(nodes, key=lambda node: node.role == "lb"):  # they ask the others
        node.member.node.write("policies/collect.policy", names)
        applied(node)
    engine = make_engine(tmp_path / "engine", processes=os.cpu_count() or 1)
    sizes, unequal = [], {}
    for node in nodes:
        capture = node.capture()
        sizes.append(len(capture.to_bytes()))
        assert b"CANARY" not in capture.to_bytes()
        release = node.release
        (result,) = compile_all(engine, release, [request_of(capture, release.enc)]).values()
        assert result.catalog is not None, (node.name, node.role, result.failure)
        found = differences(node.own_catalog(), result.catalog)
        assert {str(reference) for reference in node.withheld} <= set(found), node.name
        for reference in node.withheld:
            del found[str(reference)]
        if found:
            unequal[f"{node.name} ({node.role})"] = found
    record_property("bytes", f"{min(sizes)} to {max(sizes)}")
    assert unequal == {}
