"""The services as the how-to installs them, under a real systemd, until each kind of end."""

import json
import re
from itertools import product
from pathlib import Path

import pytest

from tests.rigs.long import with_sample
from tests.rigs.systemd import (
    FORMS,
    GATE,
    ME,
    OTHER,
    RUNS_PUPPET,
    SPLIT,
    UNITS,
    Machine,
    at_the_gate,
    open_gate,
)

NETWORK = SPLIT[2]
DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "run-the-agent.md"
# Actions that the sandbox must prevent if an attacker takes over the network side: name → code.
PROBES = {
    "read the node's key": "open(glob.glob('/etc/puppet/keys/*')[0])",
    "read the original of its credential": "open('/etc/puppet/bus.key')",
    "read runs": "os.listdir('/var/lib/localpuppet/runs')",
    "read Puppet's state": "os.listdir('/var/cache/puppet/state')",
    "write to /etc": "open('/etc/puppet/x', 'w')",
    "write to a home": "open('/root/x', 'w')",
    "become root": "os.setuid(0)",
    "see other processes": "open('/proc/1/cmdline')",
    "start what it wrote": "written('/run/localpuppet-net/x')",
    "make a namespace": "unshare()",
    "hear packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "make memory code": "mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC)",
    "load a kernel's key": "open('/dev/mem')",
    "call Puppet's socket": "connect('/run/localpuppet/agent.sock')",
}
PROBE = """
import ctypes, glob, json, mmap, os, socket, subprocess, sys

def written(path):
    with open(path, 'w') as stream:
        stream.write('#!/bin/sh\\n')
    os.chmod(path, 0o700)
    subprocess.run([path], check=True)

def unshare():
    if ctypes.CDLL(None).unshare(0x10000000) != 0:
        raise OSError('refused')

def connect(path):
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)

def writable():
    found = [top for top, _, _ in os.walk('/') if os.access(top, os.W_OK)]
    return [top for top in found if not top.startswith('/proc/')]

done = {}
for name, code in json.loads(sys.argv[1]).items():
    try:
        eval(code)
        done[name] = 'done'
    except (OSError, IndexError, SystemError) as error:
        done[name] = type(error).__name__
with open(os.environ['CREDENTIALS_DIRECTORY'] + '/bus.key') as stream:
    done['credential'] = stream.read()
done['writable'] = writable()
with open('/run/localpuppet-net/probed', 'w') as stream:
    json.dump(done, stream)
"""


def installed(machine: Machine, form: str) -> None:
    """Install and start a form with the commands of docs/how-to/run-the-agent.md."""
    blocks = re.findall(r"^```sh\n(.*?)^```", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    forms = [text for text in blocks if f"{UNITS}/" in text]
    (commands,) = [text for text in forms if ("useradd" in text) == (form == "split")]
    machine.app(GATE)
    machine.run("sh", "-euc", commands)
    machine.until(lambda: set(machine.active(*FORMS[form])) == {"active"})


@pytest.mark.parametrize("form", with_sample(FORMS, "split"))
def test_the_services_start_run_triggers_and_log_with_name_and_priority(
    machine: Machine, form: str
) -> None:
    installed(machine, form)
    assert " changed" in machine.peer("trigger", ME, "--wait", "--wait-timeout", "90s").out
    for unit in FORMS[form]:
        assert machine.run("systemctl", "is-enabled", unit).out == "enabled\n"
    unit = RUNS_PUPPET[form]
    assert "waiting for triggers" in machine.show(unit, "StatusText")
    # Each log line has a priority and the name of its unit.
    own = [entry for entry in machine.entries(unit) if entry["_SYSTEMD_UNIT"] == unit]
    assert {entry["SYSLOG_IDENTIFIER"] for entry in own} == {unit.removesuffix(".service")}
    assert {entry["PRIORITY"] for entry in own if "accepted a trigger" in entry["MESSAGE"]} == {"6"}
    machine.node("keys", "revoke", OTHER, "--yes")
    machine.run("systemctl", "restart", *FORMS[form])
    machine.peer("trigger", ME)
    refused = machine.until(
        lambda: [
            entry
            for name in FORMS[form]
            for entry in machine.entries(name)
            if "dropped" in str(entry["MESSAGE"])
        ]
    )
    assert {entry["PRIORITY"] for entry in refused} == {"4"}


@pytest.mark.parametrize("form", with_sample(FORMS, "split"))
def test_systemctl_stop_waits_until_the_run_has_ended(machine: Machine, form: str) -> None:
    installed(machine, form)
    at_the_gate(machine)
    machine.run("systemctl", "--no-block", "stop", *FORMS[form])
    machine.until(lambda: machine.active(RUNS_PUPPET[form]) == ["deactivating"])
    open_gate(machine)
    machine.until(lambda: set(machine.active(*FORMS[form])) == {"inactive"})
    assert [record["outcome"] for record in machine.records()] == ["changed"]
    assert machine.run("systemctl", "--failed", "--no-legend").out == ""


@pytest.mark.parametrize(
    ("form", "how"),
    with_sample(
        product(FORMS, ["killed", "stuck", "power"]), ("split", "killed"), ("single", "power")
    ),
)
def test_the_agent_runs_an_accepted_trigger_again_after_a_crash(
    machine: Machine, form: str, how: str
) -> None:
    installed(machine, form)
    unit = RUNS_PUPPET[form]
    if how == "stuck":
        machine.write(f"{UNITS}/{unit}.d/impatient.conf", "[Service]\nWatchdogSec=3\n")
        machine.run("sh", "-c", f"systemctl daemon-reload && systemctl restart {unit}")
        machine.until(lambda: set(machine.active(*FORMS[form])) == {"active"})
    at_the_gate(machine)
    if how == "power":
        machine.cut_power()
        machine.boot()
    else:
        signal = {"killed": "KILL", "stuck": "STOP"}[how]
        machine.run("systemctl", "kill", "--kill-whom=main", f"--signal={signal}", unit)
        machine.until(lambda: machine.show(unit, "NRestarts") == "1")
        assert machine.read("/run/passed") == "yes"
        machine.run("rm", "/run/gate")
    machine.until(lambda: set(machine.active(*FORMS[form])) == {"active"})
    machine.until(lambda: machine.records()[-1]["state"] == "finished")
    runs = machine.node("history", "--json").json["runs"]
    # The power failure removed the files below /run.
    again = "changed" if how == "power" else "unchanged"
    assert [run["outcome"] for run in runs] == [again, "interrupted"]
    if how == "stuck":
        assert "watchdog" in json.dumps(machine.entries(unit))


def test_the_sandbox_prevents_what_the_network_side_does_not_need(machine: Machine) -> None:
    machine.write("/etc/puppet/bus.key", "the key", "0600")
    machine.write("/opt/probe.py", PROBE)
    machine.write("/opt/probes.json", json.dumps(PROBES))
    machine.write(
        f"{UNITS}/{NETWORK}.d/probe.conf",
        "[Service]\n"
        "LoadCredential=bus.key:/etc/puppet/bus.key\n"
        "ExecStartPre=/bin/sh -c 'exec python3 /opt/probe.py \"$(cat /opt/probes.json)\"'\n",
    )
    installed(machine, "split")
    probed = json.loads(machine.read("/run/localpuppet-net/probed"))
    assert probed.pop("credential") == "the key"
    assert probed.pop("writable") == ["/run/localpuppet-net"]
    assert {name for name, how in probed.items() if how == "done"} == set()
    assert " changed" in machine.peer("trigger", ME, "--wait", "--wait-timeout", "90s").out


def test_a_run_continues_while_the_network_side_fills_its_directory(machine: Machine) -> None:
    installed(machine, "split")
    machine.app("file { '/run/passed': content => 'yes' }")
    free = "df --output=avail -k /run /var | tail -n 2"
    before = machine.run("sh", "-c", free).out
    full = "head -c 100000000 /dev/zero >/run/localpuppet-net/full"
    machine.run("setpriv", "--reuid=localpuppet", "--clear-groups", "sh", "-c", full, code=1)
    assert machine.run("df", "--output=avail", "/run/localpuppet-net").out.split()[-1] == "0"
    # Other processes write to /var meanwhile; the file would have taken 97,000 KiB.
    after = machine.run("sh", "-c", free).out
    for left, available in zip(after.split(), before.split(), strict=True):
        assert int(left) > int(available) - 50_000
    machine.peer("trigger", ME)
    machine.until(lambda: "the bus keeps the messages" in machine.said(NETWORK))
    machine.node("apply")
    assert [record["outcome"] for record in machine.records()] == ["changed"]
    machine.run("rm", "/run/localpuppet-net/full")
    machine.until(lambda: len(machine.records()) == 2)


def test_the_timer_runs_a_node_without_a_bus(machine: Machine) -> None:
    machine.app("file { '/run/passed': content => 'yes' }")
    for unit in ("localpuppet.service", "localpuppet.timer"):
        machine.write(f"{UNITS}/{unit}", machine.node("units", unit).out)
    soon = "[Timer]\nOnActiveSec=1\nRandomizedDelaySec=0\nAccuracySec=1ms\n"
    machine.write(f"{UNITS}/localpuppet.timer.d/soon.conf", soon)
    machine.run("sh", "-c", "systemctl daemon-reload && systemctl enable --now localpuppet.timer")
    machine.until(lambda: machine.exists("/run/passed"))
    machine.until(lambda: machine.active("localpuppet.service") == ["inactive"])
    (record,) = machine.records()
    assert record["outcome"] == "changed"
    assert machine.show("localpuppet.service", "Result") == "success"
    own = machine.entries("localpuppet.service")
    assert "localpuppet" in {entry["SYSLOG_IDENTIFIER"] for entry in own}
    # The timer has a next time, half an hour later.
    machine.until(
        lambda: machine.show("localpuppet.timer", "NextElapseUSecMonotonic") not in ("", "infinity")
    )
