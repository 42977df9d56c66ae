"""A node whose agent is two processes of two users, and another node that talks to it.

pytest's own directories are root's alone, so these nodes live in one that others may enter. The
tests need root, as the agent does: they start processes as `daemon` and `bin`.
"""

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localpuppet.base.formats.names import SignerName
from localpuppet.fleet.trust.key_files import OwnKey, TrustedKeys
from tests.rigs import preloaded
from tests.rigs.buses import Bus, etcd
from tests.rigs.node import COMMAND, PATIENCE, REPOSITORY, Node, make_node

NETWORK = pwd.getpwnam("daemon")
STRANGER = pwd.getpwnam("bin")


@dataclass
class Service:
    """A process of an agent."""

    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        return self.log.read_text("utf-8")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@dataclass
class Split:
    """A node with both sides, and `other`, which it trusts."""

    node: Node
    other: Node
    bus: Bus
    services: list[Service] = field(default_factory=list)

    @property
    def run_socket(self) -> Path:
        return self.node.root / "run" / "localpuppet" / "run.sock"

    @property
    def spool(self) -> Path:
        return self.node.root / "run" / "localpuppet-net" / "spool"

    def start(
        self,
        *words: str,
        user: pwd.struct_passwd | None = None,
        pass_fds: Collection[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> Service:
        """Start a service, as root unless `user` names another user."""
        log = self.node.root.parent / f"service{len(self.services)}.log"
        special: dict[str, Any] = {"pass_fds": pass_fds} if pass_fds else {}
        if user is not None:
            special |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        with log.open("wb") as stream:
            process: subprocess.Popen[bytes] = preloaded.start(
                words,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=self.node.environment(PYTHONPATH=str(REPOSITORY), **(env or {})),
                **special,
            )
        self.services.append(Service(process, log))
        return self.services[-1]

    def run_side(self) -> Service:
        service = self.start(*COMMAND, "agent", "--side", "run", "--debug")
        self.wait_for(service, "for the network side of daemon")
        return service

    def network_side(self) -> Service:
        words = [*COMMAND, "agent", "--side", "network", "--debug"]
        service = self.start(*words, user=NETWORK)
        self.wait_for(service, "network side of a.example.com on etcd")
        return service

    def wait_for(self, service: Service, text: str, times: int = 1) -> None:
        """Wait until a service has logged a text `times` times."""

        def said() -> bool:
            code = service.process.poll()
            assert code is None or text in service.said(), f"exit {code}: {service.said()}"
            return service.said().count(text) >= times

        try:
            self.node.wait_until(said)
        except AssertionError as error:
            raise AssertionError(f"{text!r} is not in the log:\n{service.said()}") from error

    def ask(self, line: bytes) -> dict[str, Any]:
        """Put a line before the run side, as root."""
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(PATIENCE)
            peer.connect(str(self.run_socket))
            peer.sendall(line)
            with peer.makefile("rb") as stream:
                answer: dict[str, Any] = json.loads(stream.readline())
                return answer

    def spooled(self, name: str, data: bytes, *, owner: pwd.struct_passwd = NETWORK) -> Path:
        """Leave a file in the spool, as the network side could."""
        self.spool.mkdir(mode=0o700, exist_ok=True)
        path = self.spool / name
        path.write_bytes(data)
        os.chown(path, owner.pw_uid, owner.pw_gid)
        return path


def two_sides(puppet_probe: str) -> Iterator[Split]:
    """Yield two nodes on one NATS server; no agent runs."""
    assert os.geteuid() == 0, "these tests start processes of other users: run them as root"
    top = Path(tempfile.mkdtemp(prefix="lp-", dir="/tmp"))
    top.chmod(0o755)
    readable = subprocess.run(
        [sys.executable, "-c", "import localpuppet"],
        cwd="/",
        env={"PYTHONPATH": str(REPOSITORY)},
        user=NETWORK.pw_uid,
        check=False,
    )
    assert readable.returncode == 0, f"{NETWORK.pw_name} must be able to read {REPOSITORY}"
    with contextmanager(etcd)(top) as bus:
        node, other = (_member(top / name, bus, puppet_probe) for name in ("a", "b"))
        made = Split(node, other, bus)
        network = made.spool.parent
        network.mkdir(mode=0o700, parents=True)
        os.chown(network, NETWORK.pw_uid, NETWORK.pw_gid)
        _acquaint(made)
        made.node.app("notify { 'hello': }")
        yield made
        for service in made.services:
            if service.process.poll() is None:
                service.end(signal.SIGKILL)
        for ended in (node, other):
            ended.end()
    remove(top)


def remove(top: Path) -> None:
    """Remove a directory in which runs of a killed agent may write for a moment."""
    deadline = time.monotonic() + PATIENCE
    while top.exists():
        try:
            shutil.rmtree(top)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _member(root: Path, bus: Bus, puppet_probe: str) -> Node:
    root.mkdir()
    node = make_node(root, puppet_probe)
    node.settings(
        node=f"{root.name}.example.com",
        **bus.settings,
        agent={"run_interval": False, "network": {"user": NETWORK.pw_name}},
    )
    root.chmod(0o755)
    return node


def _acquaint(split: Split) -> None:
    """Make keys, and have each node trust the other's."""
    for node, other in ((split.node, split.other), (split.other, split.node)):
        key = OwnKey(node.state / "keys" / "node.pem").make()
        name = SignerName(f"{node.root.name}.example.com")
        TrustedKeys(other.root / "trusted").pin(name, key.public_key())
