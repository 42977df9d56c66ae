"""Six real nodes, dashboard and API under disturbances for a while: nothing leaks.

`SOAK_MINUTES` is the length: ten in `scripts/slow`, 60 before a release. `SOAK_REPORT` names a
file for what was measured. A sixth of the time is for
warming up; what processes have then is compared with what they have at the end.
"""

import os
import time
from pathlib import Path

import pytest

from tests.node.cli.preview.control import ControlRepository
from tests.rigs.fleet import Fleet
from tests.rigs.long import LONG
from tests.scenarios.soak import SoakFleet, Usage, processes_of

MINUTES = float(os.environ.get("SOAK_MINUTES", "10"))
# Pages that the allocator keeps differ from time to time.
MAX_GROWTH = 1.1
ALLOCATOR = 4 * 1024 * 1024
# A connection of a browser, and a request in progress, more or less.
FEW = 4

pytestmark = [pytest.mark.puppet, LONG]


def grown(before: dict[str, Usage], after: dict[str, Usage]) -> list[str]:
    """Return what has grown."""
    return [
        f"{name}: {old} -> {new}"
        for name, old in before.items()
        if (new := after[name]).memory > old.memory * MAX_GROWTH + ALLOCATOR
        or new.descriptors > old.descriptors + FEW
    ]


def test_nothing_leaks_under_disturbances(
    nats_fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    soak = SoakFleet(nats_fleet, ControlRepository(tmp_path))
    soak.begin()
    begun = time.monotonic()
    warm: tuple[dict[str, Usage], dict[str, int]] | None = None
    number = 0
    while time.monotonic() < begun + 60 * MINUTES or warm is None:
        soak.disturbances[number % len(soak.disturbances)]()
        number += 1
        if warm is None and time.monotonic() > begun + 10 * MINUTES:
            soak.rest()
            warm = soak.usage(), soak.process_counts()
    soak.rest()
    usage, counts = soak.usage(), soak.process_counts()
    report = f"{number} disturbances\nwarm {warm}\nend  {usage} {counts}\n"
    if file := os.environ.get("SOAK_REPORT"):
        Path(file).write_text(report)
    assert grown(warm[0], usage) == []
    assert {name: counts[name] for name in counts if counts[name] > warm[1][name]} == {}
    assert soak.temporary_files() == []
    soak.end()
    roots = [member.root for member in nats_fleet.members]
    assert {root.name: pids for root in roots if (pids := processes_of(root))} == {}
    assert list(temporary.iterdir()) == []
