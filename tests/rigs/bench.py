"""A bench for the Puppet modules: `puppet apply` by itself, no supervisor around it."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localpuppet.node.puppet.command_line import LeanStart, environment
from tests.rigs.agent_peer import Answer, Peer, Question, agree
from tests.rigs.node import PATIENCE, REPOSITORY

MODULES = REPOSITORY / "modules" / "localpuppet"
ROUTES = REPOSITORY / "localpuppet" / "base" / "share" / "routes.yaml"
# puppet-terminus-puppetdb puts files of these names beside Puppet's own, which has none of them.
FOREIGN = "puppetdb*"
MAKE_RESOURCES = """
require 'puppet'
require 'json'
kind = ARGV.shift
$LOAD_PATH.concat(ARGV)
Puppet.initialize_settings(['--confdir', 'conf', '--vardir', 'var'])
problems = JSON.parse($stdin.read).map do |parameters|
  Puppet::Type.type(kind).new({ 'name' => 'x' }.merge(parameters))
  ''
rescue Puppet::Error => e
  e.message
end
puts JSON.generate(problems)
"""


def copy_puppet(directory: Path) -> Path:
    """Copy Puppet's library without what others have put into it; return a path for RUBYLIB."""
    # Debian 14 has it as a gem.
    gem = 'begin; gem "openvox"; rescue LoadError; end'
    feature = ["ruby", "-e", f'{gem}; print $LOAD_PATH.resolve_feature_path("puppet")[1]']
    entry = Path(subprocess.run(feature, check=True, capture_output=True, text=True).stdout)
    if "gems" in entry.parts:
        return directory  # a gem has only its own files
    for name in ("puppet", "puppet.rb", "puppet_pal.rb"):
        source, copy = entry.parent / name, directory / name
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns(FOREIGN))
        else:
            shutil.copy(source, copy)
    return directory


@dataclass
class Applied:
    """A `puppet apply` that ended."""

    code: int
    lines: list[str]
    report: dict[str, Any]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def errors(self) -> list[str]:
        return [line for line in self.lines if line.startswith("Error: ")]

    def resource(self, reference: str) -> dict[str, Any]:
        status: dict[str, Any] = self.report["resource_statuses"][reference]
        return status

    def was_left_alone(self, reference: str) -> bool:
        """Return whether a resource was seen and not changed; Puppet 8 reports no such resource."""
        if reference not in self.report["resource_statuses"]:
            return int(self.report["puppet_version"].split(".")[0]) >= 8
        status = self.resource(reference)
        return not status["changed"] and not status["failed"] and not status["skipped"]


@dataclass
class Bench:
    """A directory in which Puppet runs with localpuppet's modules."""

    directory: Path
    lean: LeanStart  # how Ruby starts
    peers: list[Peer] = field(default_factory=list)  # the agents; the last one answers

    def listen(self, answer: Callable[[Question], Answer] = agree) -> Peer:
        """Be the agent, until the test ends."""
        self.peers.append(Peer(answer))
        return self.peers[-1]

    def program(self, name: str, text: str) -> Path:
        """Write a shell script into a directory that is first on Puppet's PATH."""
        path = self.directory / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def start(self, code: str, *options: str, **env: str) -> subprocess.Popen[str]:
        """Start Puppet on a manifest; the newest peer, if any, is its agent."""
        (self.directory / "site.pp").write_text(code)
        path = f"{self.directory / 'bin'}:{os.environ['PATH']}"
        socket = str(self.peers[-1].path) if self.peers else str(self.directory / "none.sock")
        return subprocess.Popen(
            [
                *("puppet", "apply", "--detailed-exitcodes", "--color=false"),
                *("--confdir", "conf", "--vardir", "var", "--publicdir", "public"),
                *("--route_file", str(ROUTES), "--lastrunreport", "report.json", "--report"),
                *("--reports", "none", "--modulepath", str(MODULES), *options, "site.pp"),
            ],
            cwd=self.directory,
            env=environment(
                {"PATH": path, "HOME": str(self.directory), "LOCALPUPPET_SOCKET": socket, **env},
                lean=self.lean,
                more={},
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, puppet: subprocess.Popen[str]) -> Applied:
        try:
            out, _ = puppet.communicate(timeout=PATIENCE)
        finally:
            puppet.kill()
        report = self.directory / "report.json"
        # Facter warns about files that a container does not let it read.
        lines = [line for line in out.splitlines() if "Facter" not in line]
        return Applied(
            puppet.returncode, lines, json.loads(report.read_text()) if report.exists() else {}
        )

    def refusals(self, kind: str, cases: Sequence[Mapping[str, Any]]) -> list[str]:
        """Make resources of a type; return why each is refused, empty if it is not.

        Puppet stops at the first bad parameter of a catalog, and takes two seconds to start.
        """
        done = subprocess.run(
            ["ruby", "-e", MAKE_RESOURCES, kind, *map(str, MODULES.glob("*/lib"))],
            cwd=self.directory,
            input=json.dumps(cases),
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        problems: list[str] = json.loads(done.stdout.splitlines()[-1])
        return problems

    def apply(self, code: str, *options: str, **env: str) -> Applied:
        return self.finish(self.start(code, *options, **env))
