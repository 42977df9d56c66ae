"""A process with simulated nodes that take part in rollouts, for `rollouts.py`.

Each node is the real `BusSession` of `localpuppet agent` with a separate connection, in front of a
listener without holds and runs. The listener accepts every request, and reports the end of its run
after `seconds`. Replies and presence are signed with the node's key, because the rollout controller
verifies each. The other work of a real node (policy, disk, Puppet) is not simulated, because a
thousand nodes have a thousand disks.

Reads a JSON object from standard input (`engine`, `url`, `nodes`: name → private key in PEM,
`seconds`); ends with its standard input.
"""

import asyncio
import gc
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from simulated_agents import BETWEEN, KEYPREFIX, Quiet, open_store

from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.formats.times import show_time
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.agent.bus_session import BusSession
from localpuppet.fleet.requests.request import Request, RunOnce, answer, step_uuid
from localpuppet.fleet.triggers.cause import MOST, TriggerOutcome
from localpuppet.fleet.triggers.inbox import StepState
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner, claimed_payload
from localpuppet.node.runs.holds import rollout_owner

CLOCK = SystemClock()
GOOD = "changed"
TIMEOUT = 5.0


class SimulatedNode:
    """The part of an agent that `BusSession` needs.

    Args:
        me: The node.
        key: Its key.
        seconds: The duration of its run.
    """

    def __init__(self, me: NodeName, key: Ed25519PrivateKey, seconds: float) -> None:
        self.me = me
        self._signer = MessageSigner(SignerName.parse(me), key)
        self._seconds = seconds
        self._changed = asyncio.Event()
        self._steps: dict[str, bool] = {}  # the id of a step's cause → whether the step has ended
        self._settled: list[TriggerOutcome] = []
        self._runs: set[asyncio.Task[None]] = set()

    async def hear(self, tokens: Sequence[bytes]) -> None:
        """Ignore a trigger."""

    async def serve(self, token: bytes) -> tuple[str, str, bytes]:
        """Accept a request."""
        request = Request.parse(claimed_payload(token))
        done: Mapping[str, Json] = {}
        if request.action == "status":
            done = {"holds": [], "denied": {}}
        elif isinstance(request.args, RunOnce) and request.args.rollout is not None:
            rollout = request.args.rollout
            owner = rollout_owner(request.caller.caller, rollout.id)
            done = {"accepted": True, "step": self._step(owner, rollout.step)}
        return request.caller, request.jti, answer(self._signer, request, done, clock=CLOCK)

    def _step(self, owner: str, step: int) -> Json:
        cause = step_uuid(owner, step)
        if cause not in self._steps:
            self._steps[cause] = False
            run = asyncio.create_task(self._run(owner, cause))
            self._runs.add(run)
            run.add_done_callback(self._runs.discard)
        if self._steps[cause]:
            return {"state": StepState.OVER, "outcome": GOOD, "run": None}
        return {"state": StepState.RUNNING}

    async def _run(self, owner: str, cause: str) -> None:
        await asyncio.sleep(self._seconds)
        self._steps[cause] = True
        now = int(CLOCK.now().timestamp())
        told = TriggerOutcome(sender=owner, uuid=cause, timestamp=now, run=None, outcome=GOOD)
        self._settled = [*self._settled, told][-MOST:]
        self._changed.set()

    async def contended(self) -> None:
        """Do nothing: each simulated node has one agent."""

    async def describe(self) -> bytes:
        """Return the presence entry."""
        told = {
            "schema": 1,
            "node": str(self.me),
            "at": show_time(CLOCK.now()),
            "state": "idle",
            "outcomes": [one.to_dict() for one in self._settled],
        }
        return self._signer.sign(json.dumps(told).encode(), MessageKind.PRESENCE)

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set when a run has ended."""
        return self._changed


async def be(spec: Mapping[str, str], node: SimulatedNode, delay: float) -> None:
    """Run a node until cancelled."""
    session = BusSession(
        node,
        connect=partial(open_store, spec["engine"], spec["url"]),
        log=Quiet(),
        keyprefix=KEYPREFIX,
    )
    await asyncio.sleep(delay)
    await session.run(asyncio.Event())


async def main() -> None:
    """Run all nodes of this process."""
    reader = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(
        partial(asyncio.StreamReaderProtocol, reader), sys.stdin
    )
    spec = json.loads(await reader.readline())
    nodes = []
    for number, (name, pem) in enumerate(spec["nodes"].items()):
        key = load_pem_private_key(pem.encode(), None)
        assert isinstance(key, Ed25519PrivateKey)
        node = SimulatedNode(NodeName.parse(name), key, spec["seconds"])
        nodes.append(asyncio.create_task(be(spec, node, number * BETWEEN)))
    end = asyncio.create_task(reader.read())
    try:
        await asyncio.wait([end, *nodes], return_when=asyncio.FIRST_COMPLETED)
        if not end.done():
            raise SystemExit("a simulated node has ended")
    finally:
        for one in nodes:
            one.cancel()
        await asyncio.wait(nodes, timeout=TIMEOUT)


if __name__ == "__main__":
    gc.set_threshold(100_000, 50, 100)  # as in simulated_agents.py
    asyncio.run(main())
