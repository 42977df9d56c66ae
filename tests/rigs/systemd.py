"""A Debian with a real systemd, in separate namespaces: boots in a second, keeps nothing.

`scripts/chroot` makes the Debian once and keeps it. What a machine writes goes to memory over
it, so that machines neither see each other nor cost anything; a power cut loses what memory of
processes holds, and not what was written. In a machine localpuppet is this clone, and a
second root, `/srv/lb01`, is another node on the same bus.

Needs root, and a kernel that lets root make namespaces, overlays and cgroups. Where one of these
is missing, the tests fail and name it.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.rigs.node import PATIENCE, REPOSITORY, Done, completed
from tests.rigs.waiting import wait_until

BOOT = Path(__file__).with_name("boot.sh")
COMMAND = "/usr/local/bin/localpuppet"
PEER = "/srv/lb01"
STATE = "/var/lib/localpuppet/cache"
CACHE = ("puppet.json", "ruby/pack")
ME, OTHER = "web01.example.com", "lb01.example.com"
UNITS = "/etc/systemd/system"
SINGLE = ("localpuppet-agent.service",)
SPLIT = (
    "localpuppet-agent-run.socket",
    "localpuppet-agent-run.service",
    "localpuppet-agent-net.service",
)
FORMS = {"single": SINGLE, "split": SPLIT}
RUNS_PUPPET = {"single": SINGLE[0], "split": SPLIT[1]}
BUS = {"bus": "nats", "buses": {"nats": {"servers": ["nats://127.0.0.1:4222"]}}}
BUS_UNIT = """
[Service]
ExecStart=/usr/sbin/nats-server --addr 127.0.0.1 --jetstream --store_dir /var/lib/bus
[Install]
WantedBy=multi-user.target
"""
# Puppet waits at the gate until the test opens it, and reports when it waits.
GATE = """
file { '/run/passed': content => 'yes' }
-> exec { '/bin/sh -c "touch /run/there; read line < /run/gate; rm /run/gate"':
  onlyif  => '/usr/bin/test -p /run/gate',
  timeout => 0,
}
"""


@cache
def base() -> Path:
    """Return a Debian of the release that the tests run on, or of Debian 12; made if need be."""
    assert os.geteuid() == 0, "these tests boot a systemd: run them as root"
    name = os.environ.get("LOCALPUPPET_DEBIAN", "debian12")
    done = completed(REPOSITORY / "scripts" / "chroot", name, check=False, timeout=3600)
    assert done.code == 0, f"no Debian to boot: {done.err}"
    return Path(done.out.strip())


class Machine:
    """A machine that boots on request, with the two nodes on it; no agent runs yet."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount"),
                *("--propagation", "private", "sh", str(BOOT), str(base()), str(REPOSITORY)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = 0

    def boot(self) -> None:
        """Switch on, and wait until systemd has started everything."""
        self.pid = int(self._told("on") or 0)
        if not self.pid:
            self._holder.stdin.close()  # type: ignore[union-attr] # a pipe
            why = self._holder.stderr.read()  # type: ignore[union-attr] # a pipe
            raise AssertionError(f"this machine cannot boot a systemd for the tests: {why}")
        words = ("systemctl", "is-system-running", "--wait")
        wait_until(lambda: self._enter(*words).out.strip() == "running", self._failed)

    def cut_power(self) -> None:
        """Switch off, as a power cut does: all processes end at once."""
        os.kill(self.pid, signal.SIGKILL)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "over\n"
        self.pid = 0

    def close(self) -> None:
        """Switch off for good."""
        if self.pid:
            self.cut_power()
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait(PATIENCE)
        for stream in (self._holder.stdout, self._holder.stderr):
            assert stream is not None
            stream.close()

    def run(self, *words: str, code: int | None = 0, **environment: str) -> Done:
        """Run a command as root, in a separate unit as a person's session is."""
        settings = [f"--setenv={name}={value}" for name, value in environment.items()]
        service = ("systemd-run", "--pipe", "--wait", "--collect", "--quiet", *settings, "--")
        done = self._enter(*service, *words)
        assert code is None or done.code == code, f"{words}: {done}\n{self.log()}"
        return done

    def write(self, path: str, text: str, mode: str = "0644") -> None:
        """Write a file, and the directories that it needs."""
        script = 'mkdir -p "${1%/*}" && cat >"$1" && chmod "$2" "$1"'
        done = self._enter("sh", "-c", script, "sh", path, mode, given=text)
        assert done.code == 0, done

    def copy(self, file: Path, path: str) -> None:
        """Copy a file of the test into the machine."""
        shutil.copy(file, f"/proc/{self.pid}/root{path}")

    def restore_cache(self, kept: Path) -> None:
        """Restore what `keep_cache` kept: then the first run neither queries Puppet nor is cold."""
        for file in filter(lambda name: (kept / name).exists(), CACHE):
            self._enter("sh", "-c", 'umask 077 && mkdir -p "${1%/*}"', "sh", f"{STATE}/{file}")
            self.copy(kept / file, f"{STATE}/{file}")

    def keep_cache(self, kept: Path) -> None:
        """Keep the node's data about the installed Puppet, and its compiled Ruby, if any."""
        for file in filter(lambda name: not (kept / name).exists(), CACHE):
            made = Path(f"/proc/{self.pid}/root{STATE}/{file}")
            if self.pid and made.exists():
                (kept / file).parent.mkdir(exist_ok=True)
                shutil.copy2(made, kept / file)

    def read(self, path: str) -> str:
        """Return the text of a file."""
        return self.run("cat", path).out

    def exists(self, path: str) -> bool:
        """Return whether there is a file."""
        return self._enter("test", "-e", path).code == 0

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self._enter("systemctl", "show", "--value", "-p", name, unit).out.strip()

    def active(self, *units: str) -> list[str]:
        """Return the state of units: `active`, `inactive`, `deactivating`, …"""
        return [self.show(unit, "ActiveState") for unit in units]

    def jobs(self) -> str:
        """Return what systemd still has to do; empty when that is nothing."""
        out = self._enter("systemctl", "list-jobs", "--no-legend", "--no-pager").out
        return "" if out.startswith("No jobs") else out.strip()

    def entries(self, unit: str) -> list[dict[str, Any]]:
        """Return what is in the journal about a unit, with all fields."""
        out = self._enter("journalctl", "-o", "json", "-u", unit).out
        return [json.loads(line) for line in out.splitlines()]

    def said(self, unit: str) -> str:
        """Return the lines of a unit's own processes."""
        own = [record for record in self.entries(unit) if record.get("_SYSTEMD_UNIT") == unit]
        return "\n".join(str(record["MESSAGE"]) for record in own)

    def log(self) -> str:
        """Return the end of the journal."""
        return self._enter("journalctl", "-o", "short-precise", "-n", "80", "--no-pager").out

    def until(self, condition: Callable[[], Any]) -> Any:
        """Return the first true value of `condition`; the journal's end where it stays false."""
        return wait_until(condition, self.log)

    # The nodes.

    def peer(self, *words: str, code: int | None = 0) -> Done:
        """Run `localpuppet` on the other node."""
        return self.run(COMMAND, *words, code=code, LOCALPUPPET_ROOT=PEER)

    def node(self, *words: str, code: int | None = 0) -> Done:
        """Run `localpuppet` on this node."""
        return self.run(COMMAND, *words, code=code)

    def start_peer(self, *words: str) -> subprocess.Popen[str]:
        """Start `localpuppet` on the other node, and return; the caller collects it."""
        service = ("systemd-run", "--pipe", "--wait", "--collect", "--quiet")
        return subprocess.Popen(
            [*self._inside(), *service, f"--setenv=LOCALPUPPET_ROOT={PEER}", COMMAND, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def app(self, code: str) -> None:
        """Have the node's next runs apply this code."""
        self._site(code, {"site": {}})

    def agent_class(self, code: str = "", **parameters: Any) -> None:
        """Have the node's next runs apply class `localpuppet::agent`, and this code before it."""
        # A key may be in only one of the two files, and the class writes these.
        self.write("/etc/puppet/localpuppet.yaml", "{}\n")
        self._site(code, {"site": {}, "localpuppet::agent": {**BUS, **parameters}})

    def _site(self, code: str, classes: dict[str, dict[str, Any]]) -> None:
        release = "/etc/puppet/modules/site/trunk"
        self.write(f"{release}/manifest.yaml", "modulepath: []\n")
        self.write(f"{release}/site/manifests/init.pp", f"class site {{\n{code}\n}}\n")
        self.write("/etc/puppet/input.yaml", json.dumps({"app": "site/trunk", "classes": classes}))

    def records(self) -> list[dict[str, Any]]:
        """Return the node's runs, the oldest first."""
        script = 'for file in /var/lib/localpuppet/runs/*/status.json; do cat "$file"; echo; done'
        out = self._enter("sh", "-c", script).out
        records, at, decoder = [], 0, json.JSONDecoder()
        while at < len(out.rstrip()):
            value, at = decoder.raw_decode(out, at + len(out[at:]) - len(out[at:].lstrip()))
            records.append(value)
        return records

    def settled(self) -> None:
        """Wait until systemd has nothing to do any more."""
        self.until(lambda: not self.jobs())

    def _failed(self) -> str:
        failed = self._enter("systemctl", "--failed", "--no-pager").out
        return f"{failed}\n{self.log()}"

    def _told(self, line: str) -> str:
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.write(f"{line}\n")
        self._holder.stdin.flush()
        answer = self._holder.stdout.readline().strip()
        return answer if answer.isdigit() else ""

    def _inside(self) -> tuple[str, ...]:
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return (
            *("nsenter", "-t", str(self.pid), "-m", "-p", "-u", "-i", "-n", "-C", "-r", "-w"),
            *("env", "-i", f"PATH={path}", "HOME=/root", "LC_ALL=C.UTF-8"),
        )

    def _enter(self, *words: str, given: str = "") -> Done:
        return completed(*self._inside(), *words, check=False, given=given)


def at_the_gate(machine: Machine) -> None:
    """Have a trigger start a run, and return when the run waits at the gate."""
    machine.run("mkfifo", "/run/gate")
    machine.peer("trigger", ME)
    machine.until(lambda: machine.exists("/run/there"))


def open_gate(machine: Machine) -> None:
    """Let the run that waits at the gate continue."""
    machine.run("sh", "-c", "echo open > /run/gate")


def acquaint(machine: Machine) -> None:
    """Install the command, make the two nodes, and have each trust the other's key."""
    python = "/usr/local/lib/localpuppet/bin/python"
    machine.write(
        COMMAND,
        f'#!/bin/sh\nPYTHONPATH=/opt/localpuppet exec {python} -m localpuppet "$@"\n',
        "0755",
    )
    machine.write(f"{UNITS}/bus.service", BUS_UNIT)
    machine.run("sh", "-c", "systemctl daemon-reload && systemctl enable --now bus.service")
    peer = {"node": OTHER, **BUS}
    machine.write(f"{PEER}/localpuppet.yaml", json.dumps(peer))
    # Without the timer: twice an hour a node's own second comes, and a test may be on by then.
    own = {**peer, "node": ME, "agent": {"run_interval": False}}
    machine.write("/etc/puppet/localpuppet.yaml", json.dumps(own))
    script = """
        set -eu
        localpuppet keys init
        LOCALPUPPET_ROOT=/srv/lb01 localpuppet keys init
        localpuppet keys show > /root/web01.pem
        LOCALPUPPET_ROOT=/srv/lb01 localpuppet keys show > /root/lb01.pem
        localpuppet keys trust lb01.example.com /root/lb01.pem
        LOCALPUPPET_ROOT=/srv/lb01 localpuppet keys trust web01.example.com /root/web01.pem
    """
    machine.run("sh", "-c", script)
    machine.until(lambda: machine.peer("nodes", code=None).code == 0)  # the server listens
