"""Class `localpuppet::agent`, applied by the agent that it manages, with a real systemd."""

from itertools import product

import pytest

from tests.rigs.long import with_sample
from tests.rigs.node import PATIENCE
from tests.rigs.systemd import FORMS, ME, RUNS_PUPPET, UNITS, Machine, open_gate

# Puppet waits at this resource until the test opens the gate.
GATE = """
exec { '/bin/sh -c "read line < /run/gate; rm /run/gate"':
  onlyif  => '/usr/bin/test -p /run/gate',
  timeout => 0,
  require => Class['localpuppet::agent'],
}
"""


def start(machine: Machine, form: str, code: str = "") -> None:
    """Apply the class by hand, and wait until the agent runs."""
    machine.agent_class(code, split=form == "split")
    machine.node("apply")
    machine.until(lambda: all(state == "active" for state in machine.active(*FORMS[form])))
    machine.settled()


def converged(machine: Machine, form: str) -> None:
    """Wait for a form, and assert that it is complete, alone, and that a run changes nothing."""
    machine.until(lambda: all(state == "active" for state in machine.active(*FORMS[form])))
    machine.settled()
    (other,) = FORMS.keys() - {form}
    assert set(machine.active(*FORMS[other])) == {"inactive"}
    for unit in FORMS[other]:
        assert not machine.exists(f"{UNITS}/{unit}")
        assert machine.show(unit, "LoadState") == "not-found"
    done = machine.peer("trigger", ME, "--wait", "--wait-timeout", "60s")
    assert "unchanged" in done.out
    assert {record["outcome"] for record in machine.records()} <= {"changed", "unchanged"}
    assert machine.show("localpuppet-agent.service", "NRestarts") == "0"


@pytest.mark.parametrize(
    ("before", "after"),
    with_sample(product(FORMS, repeat=2), ("single", "split")),
)
def test_a_changed_form_or_setting_takes_effect_after_the_puppet_run_that_applies_it(
    machine: Machine, before: str, after: str
) -> None:
    start(machine, before, GATE)
    machine.run("mkfifo", "/run/gate")
    machine.agent_class(GATE, split=after == "split", run_interval="20m")
    waiting = machine.start_peer("trigger", ME, "--wait", "--wait-timeout", "90s")
    runs_puppet = RUNS_PUPPET[before]
    machine.until(lambda: machine.active(runs_puppet) == ["deactivating"])
    machine.run("systemctl", "daemon-reload")
    assert machine.show(runs_puppet, "TimeoutStopUSec") == "15min"
    assert machine.active(runs_puppet) == ["deactivating"]
    open_gate(machine)
    out, _ = waiting.communicate(timeout=PATIENCE)
    assert waiting.returncode == 0, out
    assert " changed" in out
    converged(machine, after)


@pytest.mark.parametrize(
    ("form", "ensure"),
    with_sample(product(FORMS, ["stopped", "absent"]), ("split", "absent")),
)
def test_a_run_of_the_agent_can_stop_or_remove_the_agent(
    machine: Machine, form: str, ensure: str
) -> None:
    start(machine, form)
    machine.agent_class(split=form == "split", ensure=ensure)
    machine.peer("trigger", ME)
    machine.until(lambda: set(machine.active(*FORMS[form])) == {"inactive"})
    machine.settled()
    present = [machine.exists(f"{UNITS}/{unit}") for unit in FORMS[form]]
    assert set(present) == {ensure == "stopped"}
    assert [record["outcome"] for record in machine.records()] == ["changed", "changed"]
    assert machine.run("systemctl", "--failed", "--no-legend").out == ""
