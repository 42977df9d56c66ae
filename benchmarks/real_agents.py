"""Real nodes for `triggers.py`: roots with keys, `localpuppet agent` in front, real Puppet behind.

Owns: making a node (its root, its site code, its Puppet), starting and ending its agent, and the
peer, which is the predecessor's loop. A node's Puppet is a script that writes the time to `starts`,
waits while a file `gate` exists, and then becomes the real Puppet. The time is CLOCK_REALTIME in
nanoseconds from date(1), which costs 1 to 2 ms. All figures include that.

The notifying resource has the type `stamp`: its change writes the time to a file, and is the event
that refreshes the trigger. A resource `seen` writes the time at which Puppet evaluates it, and
changes nothing.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fleets import PATIENCE, REPOSITORY

from localpuppet.fleet.app import FleetApp
from localpuppet.node.app import NodeApp

PUPPET = "/usr/bin/puppet"
SETPRIV = "/usr/bin/setpriv"
TSP = "/usr/bin/tsp"
_SCRIPT = """#!/bin/sh
if [ "$1" = apply ]; then
  date +%s%N >>{starts}
  while [ -e {gate} ]; do sleep 0.1; done
fi
exec {puppet} "$@"
"""
_STAMP = """Puppet::Type.newtype(:stamp) do
  newparam(:path, namevar: true)
  newproperty(:when) do
    newvalue(:now)
    def retrieve
      :earlier
    end

    def set(_value)
      now = Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond)
      File.write(resource[:path], "#{now}\\n")
    end
  end
end
"""
# A resource in the desired state that records its evaluation: a run of its node changes nothing.
_SEEN = """Puppet::Type.newtype(:seen) do
  newparam(:path, namevar: true)
  newproperty(:when) do
    newvalue(:now)
    def retrieve
      now = Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond)
      File.write(resource[:path], "#{now}\\n")
      :now
    end
  end
end
"""
# The predecessor's provider, with the current API of etcd: one HTTP request from Puppet.
_PUT_KEY = """require 'net/http'
require 'json'
require 'base64'
Puppet::Type.newtype(:put_key) do
  newparam(:key, namevar: true)
  newparam(:server)
  def refresh
    body = { key: Base64.strict_encode64(self[:key]), value: Base64.strict_encode64('{}') }
    answer = Net::HTTP.post(URI("#{self[:server]}/v3/kv/put"), body.to_json)
    raise Puppet::Error, answer.body unless answer.is_a?(Net::HTTPOK)
  end
end
"""


class Node:
    """A node on this machine with separate Puppet directories.

    Args:
        directory: The directory of its root.
        name: Its name.
        bus: The settings `bus` and `buses`; others replace those of this file.
        site: Puppet code of its class `site`.
    """

    def __init__(self, directory: Path, name: str, bus: Mapping[str, Any], *, site: str) -> None:
        self.name = name
        self.root = directory / name
        self.starts = self.root / "starts"
        self.gate = self.root / "gate"
        self._agent: subprocess.Popen[bytes] | None = None
        app = self.root / "modules" / "site" / "trunk"
        types = app / "bench" / "lib" / "puppet" / "type"
        types.mkdir(parents=True)
        (types / "stamp.rb").write_text(_STAMP)
        (types / "seen.rb").write_text(_SEEN)
        (types / "put_key.rb").write_text(_PUT_KEY)
        (app / "site" / "manifests").mkdir(parents=True)
        (app / "site" / "manifests" / "init.pp").write_text(f"class site {{\n{site}\n}}\n")
        (app / "manifest.yaml").write_text("{}\n")
        for own in ("enc", "manifests"):
            _copy(REPOSITORY / own, self.root / own)
        (self.root / "input.yaml").write_text("app: site/trunk\nclasses: [site]\n")
        (self.root / "puppet" / "var").mkdir(parents=True)
        script = make_script(self.root)
        settings = {
            "node": name,
            "agent": {"run_interval": False},
            "puppet": {"command": str(script), "confdir": "puppet/conf", "vardir": "puppet/var"},
            **bus,
        }
        (self.root / "localpuppet.yaml").write_text(json.dumps(settings))
        self.parts = FleetApp(NodeApp(str(self.root)))
        _ = self.parts.signer  # makes its key

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The records of its runs, oldest first."""
        found = sorted((self.root / "var" / "runs").glob("*/status.json"))
        return [json.loads(path.read_text()) for path in found]

    @property
    def pid(self) -> int:
        """Its agent."""
        assert self._agent is not None
        return self._agent.pid

    def trust(self, other: "Node") -> None:
        """Pin another node's key."""
        key = other.parts.identity.own_key.load().public_key()
        self.parts.identity.trusted.pin(other.parts.identity.name(), key)

    def obey(self, operator: "Node", policy: str) -> None:
        """Let the node and an operator trust each other; the node follows its policy."""
        self.trust(operator)
        operator.trust(self)
        file = self.root / "policies" / "puppet.policy"
        file.parent.mkdir()
        file.write_text(policy)

    def apply(self, environment: Mapping[str, str] | None = None) -> None:
        """Run Puppet by hand, with more in its environment."""
        done = subprocess.run(
            [*_localpuppet(self.root), "apply"],
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{self.name}: apply exited {done.returncode}: {done.stdout}")

    def start(self) -> None:
        """Start its agent; return when it is ready."""
        log = self.root / "agent.log"
        with log.open("wb") as out:
            self._agent = subprocess.Popen(
                [SETPRIV, "--pdeathsig", "TERM", *_localpuppet(self.root), "agent"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        wait_until(lambda: " on " in log.read_text(), f"{self.name}: no agent")

    def stop(self) -> None:
        """End its agent and its active run."""
        if self._agent is not None:
            self.gate.unlink(missing_ok=True)
            self._agent.send_signal(signal.SIGTERM)
            self._agent.wait(PATIENCE)
            self._agent = None

    def rest(self) -> None:
        """Return when no run is active."""
        wait_until(
            lambda: all(run["state"] == "finished" for run in self.runs), f"{self.name}: runs on"
        )


class Predecessor:
    """puppet-trigger's loop: `while true; do etcdctl watch KEY && tsp -- RUN_CMD; done`.

    Here, etcdctl's `watch KEY -- COMMAND` starts tsp for each event. So it need not restart between
    two events, as version 2 of the loop did, which is an advantage for the peer.

    Args:
        directory: The directory of its files.
        server: The URL of etcd.
        key: The key that it watches.
    """

    def __init__(self, directory: Path, server: str, key: str) -> None:
        directory.mkdir()
        self.starts = directory / "starts"
        site = directory / "site.pp"
        site.write_text("notify { 'run': }\n")
        script = make_script(directory)
        run = [str(script), "apply", f"--confdir={directory}/conf", f"--vardir={directory}/var"]
        watch = ["etcdctl", f"--endpoints={server}", "watch", key, "--", TSP, *run, str(site)]
        self._env = {
            "PATH": "/usr/bin:/bin",
            "ETCDCTL_API": "3",
            "TS_SOCKET": str(directory / "tsp.socket"),
            "TMPDIR": str(directory),
            "HOME": str(directory),
        }
        loop = f"while true; do {shlex.join(watch)}; sleep 1; done"
        with (directory / "log").open("wb") as out:
            self._loop = subprocess.Popen(
                [SETPRIV, "--pdeathsig", "TERM", "/bin/sh", "-c", loop],
                env=self._env,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    @property
    def watcher(self) -> int:
        """The process id of its etcdctl."""
        children = Path(f"/proc/{self._loop.pid}/task/{self._loop.pid}/children")
        wait_until(lambda: bool(children.read_text()), "etcdctl did not start")
        return int(children.read_text().split()[0])

    def rest(self) -> None:
        """Return when its queue is empty."""
        subprocess.run([TSP, "-w"], env=self._env, check=False, capture_output=True)

    def stop(self) -> None:
        """End it."""
        os.killpg(self._loop.pid, signal.SIGTERM)
        self._loop.wait(PATIENCE)
        subprocess.run([TSP, "-K"], env=self._env, check=False, capture_output=True)


def make_script(directory: Path) -> Path:
    """Return a Puppet that records the start of an apply, and waits at a gate."""
    path = directory / "puppet.sh"
    (directory / "starts").touch()
    path.write_text(
        _SCRIPT.format(starts=directory / "starts", gate=directory / "gate", puppet=PUPPET)
    )
    path.chmod(0o755)
    return path


def wait_until(true: Callable[[], bool], problem: str, *, seconds: float = PATIENCE) -> None:
    """Poll until a condition is true; no figure includes this time."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(problem)
        time.sleep(0.02)


def _localpuppet(root: Path) -> list[str]:
    return [sys.executable, "-m", "localpuppet", "--root", str(root)]


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["/bin/cp", "-r", str(source), str(target)], check=True)
