"""A storm of triggers during a slow run: at most two runs, bounded memory, a readable log."""

import os
import sqlite3
import sys
import time
from contextlib import closing

from localpuppet.fleet.agent.service_log import MOST, WINDOW
from tests.rigs.buses import TIMEOUT
from tests.rigs.fleet import Fleet
from tests.rigs.preloaded import OWN_PYTHON
from tests.rigs.waiting import wait_until
from tests.simulation.history import check_arrivals

# scripts/faults sets the number; the short form shows the same in a tenth of the time.
STORM = int(os.environ.get("FAULTS_STORM", "1000"))
MEBIBYTE = 1024 * 1024
# How many storms a test makes at most: of one that a busy agent reads late, the bus keeps little.
STORMS = 20


def may_log(begun: float) -> float:
    """Return how many lines of a kind an agent may have logged since it started."""
    return MOST * (1 + (time.monotonic() - begun) / WINDOW)


def test_a_storm_during_a_slow_run(served_fleet: Fleet) -> None:
    fleet = served_fleet
    fleet.bus.timeout = TIMEOUT
    senders = fleet.add("a", "c", "d", "e")
    (b,) = fleet.add("b")
    b.behave(gate=True)
    # Without --debug: the log is as an operator has it.
    begun = time.monotonic()
    b.start(before=OWN_PYTHON, debug=False)
    fleet.present(b)
    fleet.send(senders[0], b)
    b.wait_log("history .*started")
    before = b.memory()
    inbox = b.root / "var" / "agent" / "inbox.sqlite"

    def ask(query: str) -> list[str]:
        with closing(sqlite3.connect(f"file:{inbox}?mode=ro", uri=True)) as connection:
            return [row[0] for row in connection.execute(query)]

    def lost() -> list[str]:
        """Return what was sent, and neither accepted nor followed by what was: by the disk."""
        seen = ask("SELECT id FROM seen")
        accepted = [{"at": 0, "node": b.name, "what": "accepted", "id": id_} for id_ in seen]
        sent = [event for event in fleet.history() if event["what"] == "sent"]
        return check_arrivals([*accepted, *sent])

    owed = storms = 0
    while owed <= STORM // 2 and storms < STORMS:
        storms += 1
        for sender in senders:
            fleet.send(sender, b, count=STORM // len(senders) - 1)
            fleet.send(sender, b)  # alone: the order of those above is the bus's secret
        wait_until(lambda: not lost(), lambda: "\n".join([*lost(), b.log]))
        owed = len(ask("SELECT id FROM causes"))
    after, most = b.memory(), b.memory("VmHWM")
    b.behave()
    b.open_gate()
    wait_until(lambda: not ask("SELECT id FROM causes"), lambda: b.log)
    sys.stdout.write(
        f"{fleet.bus.engine}: {storms * STORM} triggers, {owed} causes,"
        f" {(after - before) / MEBIBYTE:.1f} MiB more memory,"
        f" {(most - before) / MEBIBYTE:.1f} MiB at most\n"
    )
    assert b.stop() == 0
    assert b.count("started") == 2
    assert most - before <= 64 * MEBIBYTE
    lines = b.log.splitlines()
    assert len(lines) < 200 + may_log(begun), "rate-limited"
    assert f"running for {owed - 1} causes: trigger from" in b.log
    assert owed > STORM // 2, "a storm, and not what the bus had left of it"


def test_a_storm_of_rubbish(fleet: Fleet) -> None:
    """Refusals are rate-limited, too."""
    a, b, c = fleet.add("a", "b", "c")
    (eve,) = fleet.add("eve", trusted=False)
    begun = time.monotonic()
    b.start(before=OWN_PYTHON, debug=False)
    fleet.present(b)
    for _ in range(100):
        fleet.send(eve, b, late=True)
    (good,) = fleet.send(a, b)
    fleet.accepted(b, good)
    assert 0 < b.log.count("dropped a trigger") <= may_log(begun)
    assert b.stop() == 0
    del c
