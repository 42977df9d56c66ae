"""A storm of triggers during a slow run: two runs at the most, bounded memory, a readable log."""

import os
import sqlite3

import pytest

from tests.agent.fleet import Fleet, wait_until

# scripts/faults sets the number; the short form shows the same in a tenth of the time.
STORM = int(os.environ.get("FAULTS_STORM", "1000"))
MEBIBYTE = 1024 * 1024


def test_a_storm_during_a_slow_run(
    served_fleet: Fleet, record_property: pytest.RecordProperty
) -> None:
    fleet = served_fleet
    senders = fleet.add("a", "c", "d", "e")
    (b,) = fleet.add("b")
    b.behave(gate=True)
    # Without --debug: the log is as an operator has it.
    b.start(debug=False)
    fleet.present(b)
    fleet.send(senders[0], b)
    b.wait_log("history .*started")
    before = b.memory()
    for sender in senders:
        fleet.send(sender, b, count=STORM // len(senders))
    inbox = b.root / "var" / "agent" / "inbox.sqlite"

    def owed() -> int:
        with sqlite3.connect(f"file:{inbox}?mode=ro", uri=True) as connection:
            count: int = connection.execute("SELECT count(*) FROM causes").fetchone()[0]
            return count

    def all_but_superseded() -> bool:
        """The bus may keep only the last of each sender; all engines with a server tell all."""
        return owed() == STORM + 1

    wait_until(all_but_superseded, lambda: f"{owed()} of {STORM + 1} are owed\n{b.log}")
    after, most = b.memory(), b.memory("VmHWM")
    b.behave()
    b.open_gate()
    wait_until(lambda: owed() == 0, lambda: b.log)
    record_property("storm", STORM)
    record_property("more_kib", (after - before) // 1024)
    record_property("most_more_kib", (most - before) // 1024)
    assert b.stop() == 0
    assert b.count("started") == 2
    assert most - before <= 64 * MEBIBYTE
    lines = b.log.splitlines()
    assert len(lines) < 250, "rate-limited"
    assert f"running for {STORM} causes: trigger from" in b.log


def test_a_storm_of_rubbish(fleet: Fleet) -> None:
    """Refusals are rate-limited, too, and what was left out is counted."""
    a, b, c = fleet.add("a", "b", "c")
    (eve,) = fleet.add("eve", trusted=False)
    b.start(debug=False)
    fleet.present(b)
    for _ in range(100):
        fleet.send(eve, b, late=True)
    (good,) = fleet.send(a, b)
    fleet.accepted(b, good)
    assert b.log.count("dropped a trigger") <= 60
    assert b.stop() == 0
    del c
