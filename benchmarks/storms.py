"""A storm of triggers during a run, for `triggers.py`: the runs after it, and its cost.

A hundred trusted senders write a hundred signed triggers each, while the node's Puppet waits at its
gate. Then the benchmark opens the gate. It counts the runs that start after the start of the storm,
and measures the agent's resident memory before the storm and at its peak.
"""

import asyncio
import sqlite3
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleets import PATIENCE
from real_agents import Node, wait_until
from simulated_agents import KEYPREFIX, open_store

from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.bus.layout import triggers_for
from localpuppet.fleet.triggers.cause import Trigger
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner

SENDERS = 100
EACH = 100
AT_ONCE = 64
QUIET = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """The result of a storm; memory in MiB."""

    sent: int
    accepted: int
    runs: int
    before: float
    most: float


async def storm(node: Node, engine: str, url: str) -> Storm:
    """Send a storm to a node."""
    keys = {SignerName.parse(f"s{n:03}.example.com"): _key() for n in range(SENDERS)}
    for name, key in keys.items():
        node.parts.identity.trusted.pin(name, key.public_key())
    messages = _messages([MessageSigner(name, key) for name, key in keys.items()], node.name)
    kv = await open_store(engine, url)
    try:
        node.gate.touch()
        await kv.put(*messages[0], ttl=180)
        wait_until(lambda: bool(node.starts.read_text()), "no run began")
        wait_until(lambda: _causes(node) == 1, "the first trigger is not in the inbox")
        Path(f"/proc/{node.pid}/clear_refs").write_text("5")  # reset the recorded peak
        before = _memory(node.pid, "VmRSS")
        rest = iter(messages[1:])

        async def send() -> None:
            for key, token in rest:
                await kv.put(key, token, ttl=180)

        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
        accepted = await _settled(node)
        node.gate.unlink()
        wait_until(lambda: _causes(node) == 0, "causes are left", seconds=2 * PATIENCE)
        await asyncio.sleep(QUIET)
        node.rest()
    finally:
        await kv.close()
    return Storm(
        sent=len(messages),
        accepted=accepted,
        runs=len(node.runs) - 1,
        before=before,
        most=_memory(node.pid, "VmHWM"),
    )


def _key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def _messages(signers: list[MessageSigner], node: str) -> list[tuple[str, bytes]]:
    """Return keys and values, one of each sender in turn."""
    clock = SystemClock()
    me = NodeName.parse(node)
    found = []
    for _ in range(EACH):
        for signer in signers:
            sender = NodeName.parse(signer.name)
            trigger = Trigger(
                hostname=sender,
                tags=("storm",),
                hosts=(me,),
                timestamp=int(clock.now().timestamp()),
                uuid=str(uuid.uuid4()),
                ttl=180,
                hops=0,
                path=(sender,),
            )
            token = signer.sign(trigger.to_payload(), MessageKind.TRIGGER)
            found.append((triggers_for(me, KEYPREFIX) + sender, token))
    return found


def _causes(node: Node) -> int:
    """Return the number of causes that wait for a run."""
    path = node.root / "var" / "agent" / "inbox.sqlite"
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        ((count,),) = connection.execute("SELECT count(*) FROM causes").fetchall()
        return int(count)
    finally:
        connection.close()


async def _settled(node: Node) -> int:
    """Return the number of causes when it has not grown for a while."""
    count, since = _causes(node), time.monotonic()
    while time.monotonic() - since < QUIET:
        await asyncio.sleep(0.1)
        if (now := _causes(node)) != count:
            count, since = now, time.monotonic()
    return count


def _memory(pid: int, what: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"the kernel does not tell {what}")
