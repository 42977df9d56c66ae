"""One node of a fleet: its root, its agent as a process, its log as a history."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.inventory.outbox import Outbox
from localpuppet.fleet.trust.key_files import OwnKey
from tests.fleet.inventory.entries import entry
from tests.rigs import preloaded
from tests.rigs.node import COMMAND, REPOSITORY, Done, Node
from tests.rigs.waiting import PATIENCE, wait_until

RUN_SCRIPT = Path(__file__).with_name("run_script.py")
RUN_COMMAND = [sys.executable, "-I", "-S", str(RUN_SCRIPT)]


def open_fifo(path: Path) -> None:
    """Let the process that reads there, or will, continue."""

    def opened() -> int:
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # no reader yet
            return 0

    os.close(wait_until(opened, lambda: f"no process reads {path}"))


def read_line(process: subprocess.Popen[str], patience: float = PATIENCE) -> str:
    """Return the next line that a command prints, within `patience` seconds."""
    lines: list[str] = []
    stream = process.stdout
    assert stream is not None
    reader = threading.Thread(target=lambda: lines.append(stream.readline()), daemon=True)
    reader.start()
    reader.join(patience)
    assert lines, "it prints nothing"
    return lines[0]


@dataclass
class Member:
    """One node of a fleet."""

    name: NodeName
    node: Node
    command: list[str] = field(default_factory=lambda: [*COMMAND])  # what its agent is started with
    process: subprocess.Popen[bytes] | None = None

    @property
    def root(self) -> Path:
        return self.node.root

    @property
    def log_file(self) -> Path:
        return self.root / "log"

    @property
    def log(self) -> str:
        return self.log_file.read_text("utf-8") if self.log_file.exists() else ""

    @property
    def key(self) -> OwnKey:
        return OwnKey(self.root / "var" / "keys" / "node.pem")

    def behave(self, **how: Any) -> None:
        """Set what runs do from now on: see `run_script.py`."""
        kill = how.pop("kill", None)
        if kill:
            (self.root / f"kill-{kill}").touch()
        if how.get("gate") and not (self.root / "gate").exists():
            os.mkfifo(self.root / "gate")
        self.node.write("behaviour.json.new", json.dumps(how)).replace(self.root / "behaviour.json")

    def open_gate(self) -> None:
        """Let the run that waits, or will, continue."""
        open_fifo(self.root / "gate")

    def start(self, *, before: Sequence[str] = (), debug: bool = True) -> None:
        """Start the agent, behind the words `before`; `debug` logs what a history is read from."""
        assert self.process is None
        options = ["--debug"] if debug else []
        with self.log_file.open("ab") as log:
            self.process = preloaded.start(
                [*before, *self.node.inside, *self.command, "agent", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.node.environment(PYTHONPATH=str(REPOSITORY)),
            )

    def say(self, **event: Any) -> None:
        """Write an event into the history."""
        with self.log_file.open("a") as log:
            log.write(f"history {json.dumps(event)}\n")

    def publish_entry(self, *roles: str, **more: Any) -> None:
        """Publish the entry of a good run."""
        made = entry(self.name, at=time.time(), roles=roles, **more)
        Outbox(self.root / "var").offer(made, refresh=0)
        done = self.run("inventory", "publish")
        assert done.code == 0, done.err

    def kill(self) -> None:
        """End the agent as a crash would."""
        self._end(signal.SIGKILL)
        self.say(what="killed")

    def killed(self) -> None:
        """Wait until something else has killed the agent."""
        assert self.process is not None
        code = self.process.wait(PATIENCE)
        assert code in (-signal.SIGKILL, 128 + signal.SIGKILL), self.log
        self.process = None

    def stop(self) -> int:
        """End the agent in good order; return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self.process = None
        return code

    def freeze(self) -> None:
        """Let the agent hang."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the agent continue."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def wait_log(self, pattern: str, count: int = 1) -> list[str]:
        """Wait until the log has `count` matches; return all."""
        lines: list[str] = wait_until(
            lambda: (
                matches
                if len(matches := re.findall(pattern, self.log, re.MULTILINE)) >= count
                else None
            ),
            lambda: f"{self.name}: nothing like {pattern!r} in\n{self.log}",
        )
        return lines

    def events(self) -> list[dict[str, Any]]:
        return list(LogReader(self.name).events(self.log))

    def count(self, what: str) -> int:
        return sum(event["what"] == what for event in self.events())

    def memory(self, field: str = "VmRSS") -> int:
        """Return the agent's memory in bytes."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(rf"{field}:\s+(\d+) kB", status)[0]) * 1024

    def run(self, *arguments: str, code: int | None = None, **more: str) -> Done:
        """Run the command line."""
        return self.node.run(*arguments, code=code, **more)

    def holds(self) -> list[str]:
        """Return the reasons of the node's holds."""
        return [hold["reason"] for hold in self.run("status", "--json").json["holds"]]

    def wait_nodes(self, states: Mapping[str, str]) -> None:
        """Wait until `nodes` shows these nodes in these states, and no others."""
        seen: list[dict[str, str]] = [{}]

        def look() -> bool:
            nodes = self.run("nodes", "--json").json["nodes"]
            seen[0] = {node["node"]: node["state"] for node in nodes}
            return seen[0] == states

        wait_until(look, lambda: f"not {states}, but {seen[0]}")

    def clean(self) -> None:
        """End what is left of the agent, of its runs, and of commands."""
        if self.process is not None:
            self.thaw()
            self.kill()
        for event in self.events():
            if event["what"] == "started" and "cause" in event:  # a run of run_script.py
                _kill_run(int(event["run"].partition("-")[0]), self.root)
        self.node.end()


def _kill_run(pid: int, root: Path) -> None:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return
    if f"LOCALPUPPET_ROOT={root}".encode() in environment:
        os.kill(pid, signal.SIGKILL)


# What the agent writes before a line: its priority in the journal, or the time.
_HEAD = r"^(?:<\d>|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:warning: )?)"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_CAUSE = rf"a (?P<cause>\S+(?: from \S+)?) \((?P<uuid>{_UUID})\)(?: along (?P<way>.+))?"
_LINES = {
    "accepted": re.compile(rf"accepted {_CAUSE}"),
    "owed": re.compile(rf"still waiting for a run: {_CAUSE}"),
    "running": re.compile(r"running for "),
    "causes": re.compile(r"this run's causes: (?P<ids>.+)"),
    "dropped": re.compile(rf"dropped (?P<id>\S+/{_UUID}): (?P<reason>.+)"),
    "refused": re.compile(
        rf"dropped a trigger(?: of (?P<sender>\S+) \((?P<uuid>{_UUID})\))?: (?P<reason>.+)"
    ),
    "busy": re.compile(r"postponed the run, trying again soon: "),
    "impossible": re.compile(r"no run for "),
    "over": re.compile(r"run (?P<run>\d{8}T\S+) (?P<outcome>\w+)"),
}


class LogReader:
    """Turns the lines of one node's log into events."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._causes: list[str] = []
        self._told_taken = True
        self._accepted: set[str] = set()
        self._at = 0

    def events(self, log: str) -> Iterator[dict[str, Any]]:
        """Yield the events, each with `at`, `node` and `what`."""
        for line in log.splitlines():
            for event in self._events(re.sub(_HEAD, "", line)):
                self._at += 1
                yield {"at": self._at, "node": self._node, **event}

    def _events(self, line: str) -> Iterator[dict[str, Any]]:
        if self._causes and not self._told_taken and not line.startswith("this run's causes"):
            self._told_taken = True
            yield {"what": "taken", "causes": tuple(self._causes)}
        yield from self._read(line)

    def _read(self, line: str) -> Iterator[dict[str, Any]]:
        if line.startswith("history "):
            yield from self._told(json.loads(line.removeprefix("history ")))
            return
        for what, pattern in _LINES.items():
            match = pattern.match(line)
            if match:
                yield from self._events_of(what, match.groupdict())
                return

    def _told(self, event: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Read a line of a run or a test; the run has the causes that its agent logged last."""
        if event["what"] == "started":
            yield {**event, "causes": tuple(self._causes)}
        else:
            yield event
        if event["what"] == "started":
            self._causes = []

    def _events_of(self, what: str, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if what in ("accepted", "owed"):
            # A cause that was stored before its agent logged it counts when the next agent logs it.
            yield from self._accept(**fields)
        elif what == "running":  # an agent before it may have been killed at this point
            self._causes = []
        elif what == "causes":
            self._causes += fields["ids"].split()
            self._told_taken = False
        elif what == "dropped":
            yield {"what": "dropped", "id": fields["id"], "reason": fields["reason"]}
        elif what == "refused" and "a duplicate" not in fields["reason"]:
            # That a message comes again is no answer to it: the first time counts.
            known = f"{fields['sender']}/{fields['uuid']}" if fields["uuid"] else ""
            way = re.search(r" is in the path (.+)$", fields["reason"])
            path = tuple(way[1].split(" -> ")) if way else None
            yield {"what": "refused", "id": known, "reason": fields["reason"], "path": path}
        elif what == "over":  # a run of localpuppet's supervisor, logged when it is over
            yield {"what": "started", "run": fields["run"], "causes": tuple(self._causes)}
            yield {"what": "ended", "run": fields["run"]}
        if what in ("busy", "over", "impossible"):
            self._causes = []

    def _accept(self, cause: str, uuid: str, way: str | None) -> Iterator[dict[str, Any]]:
        kind, _, sender = cause.partition(" from ")
        identifier = f"{sender or self._node}/{uuid}"
        if identifier in self._accepted:
            return
        self._accepted.add(identifier)
        path = tuple(way.split(" -> ")) if way else (sender,) if kind == "trigger" else ()
        yield {"what": "accepted", "id": identifier, "path": path}
