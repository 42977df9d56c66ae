"""A fleet of real agents on one machine: roots of their own, keys trusted crosswise, one bus.

Agents are processes that are started, killed and frozen by their ids. What happened is in one log
a node (`LogReader`); `Fleet.settle` waits until the history is whole and compares it with
what docs/explanation/triggers.md guarantees.
"""

import asyncio
import re
import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import KEYPREFIX
from localpuppet.fleet.inventory import presence
from localpuppet.fleet.triggers import sending
from localpuppet.fleet.trust.key_files import TrustedKeys
from localpuppet.fleet.trust.signing import MessageSigner
from tests.rigs.buses import Bus
from tests.rigs.member import RUN_COMMAND, Member
from tests.rigs.node import Node, make_node
from tests.rigs.waiting import PATIENCE, wait_until
from tests.simulation.history import check, check_arrivals

# Seconds, to be tried in turn: on a busy machine, a short one expires on the way.
SHORT_TTLS = (1, 8, 64)


def _accepted(uuid: str) -> str:
    """Return the pattern of the line that a node logs for an accepted trigger."""
    return rf"accepted a .*\({uuid}\)"


async def _until_taken(
    call: sending.Outgoing, kv: KeyValue, signer: MessageSigner
) -> sending.SendResult:
    while True:
        try:
            return await sending.send(
                call, kv=kv, signer=signer, paths=[()], clock=SystemClock(), uuid=str(uuid.uuid4())
            )
        except UnavailableError:
            await asyncio.sleep(0.05)


class Fleet:
    """Nodes on one bus."""

    def __init__(self, directory: Path, sockets: Path, bus: Bus, probe: str) -> None:
        self.directory = directory
        self.sockets = sockets
        self.bus = bus
        self.probe = probe
        self.members: list[Member] = []

    def add(self, *names: str, **settings: Any) -> list[Member]:
        """Make nodes, whose keys all others trust; see `add_one`."""
        return [self.add_one(name, **settings) for name in names]

    def add_one(
        self, name: str, *, puppet: bool = False, trusted: bool = True, **settings: Any
    ) -> Member:
        """Make a node NAME.example.com, with runs of Puppet or of `run_script.py`."""
        root = self.directory / name
        node = make_node(root, self.probe) if puppet else Node(root)
        member = Member(NodeName.parse(f"{name}.example.com"), node)
        member.root.mkdir(exist_ok=True)
        if not puppet:  # but `disable` asks for its directories
            (root / "var" / "cache").mkdir(parents=True, mode=0o700)
            node.write("var/cache/puppet.json", self.probe.replace("@ROOT@", str(root)), 0o600)
            (root / "puppet" / "var" / "state").mkdir(parents=True)
        agent = {"run_interval": False, **({} if puppet else {"run_cmd": RUN_COMMAND})}
        node.settings(
            node=str(member.name),
            socket=str(self.sockets / name),
            agent={**agent, **settings.pop("agent", {})},
            **self.bus.settings,
            **settings,
        )
        member.behave()
        key = member.key.make(replace=False).public_key()
        for other in self.members if trusted else ():
            TrustedKeys(other.root / "trusted").pin(SignerName(member.name), key)
        for other in self.members:
            TrustedKeys(member.root / "trusted").pin(
                SignerName(other.name), other.key.load().public_key()
            )
        self.members.append(member)
        return member

    def start(self) -> None:
        """Start all agents that do not run, and wait until each is on the bus."""
        for member in self.members:
            if member.process is None:
                member.start()
        self.present(*self.members)

    def present(self, *members: Member) -> None:
        """Wait until these are on the bus."""

        async def wait() -> None:
            async with asyncio.timeout(PATIENCE), self.bus.open() as kv:
                while not {member.name for member in members} <= set(await presence.nodes(kv)):
                    await asyncio.sleep(0.02)

        asyncio.run(wait())

    def send(
        self, sender: Member, *to: Member, ttl: int = 900, count: int = 1, late: bool = False
    ) -> list[str]:
        """Send triggers by hand as `sender` would, and repeat that while the bus is unreachable.

        Returns their uuids.
        """
        return asyncio.run(self._send(sender, to, ttl, count, late=late))

    async def _send(
        self, sender: Member, to: Sequence[Member], ttl: int, count: int, *, late: bool
    ) -> list[str]:
        call = sending.Outgoing(
            hosts=tuple(member.name for member in to),
            tags=(),
            ttl=ttl,
            keyprefix=KEYPREFIX,
            keyttl=ttl,
        )
        signer = MessageSigner(SignerName(sender.name), sender.key.load())
        slots = asyncio.Semaphore(sending.AT_ONCE)
        async with asyncio.timeout(PATIENCE), self.bus.open(timeout=self.bus.timeout) as kv:

            async def one() -> str:
                async with slots:
                    sent = await _until_taken(call, kv, signer)
                    for node in sent.sent:
                        sender.say(
                            what="sent",
                            run=None,
                            to=node,
                            uuid=sent.uuid,
                            path=[sender.name],
                            late=late,
                        )
                    return sent.uuid

            return list(await asyncio.gather(*(one() for _ in range(count))))

    def until_expired(self, sender: Member, to: Member) -> None:
        """Wait until the bus has forgotten a trigger, and its ttl of one second has passed."""
        late = time.time() + 2.0  # its timestamp is a whole second

        async def wait() -> None:
            async with asyncio.timeout(PATIENCE), self.bus.open() as kv:
                key = layout.triggers_for(to.name, KEYPREFIX) + sender.name
                while await kv.get(key) or time.time() < late:
                    await asyncio.sleep(0.05)

        asyncio.run(wait())

    def accepted(self, member: Member, uuid: str) -> None:
        """Wait until a node has accepted a trigger."""
        member.wait_log(_accepted(uuid))

    def send_short(self, sender: Member, to: Member) -> str:
        """Send a trigger that a node accepts, and whose ttl ends soon; return its uuid.

        A trigger that expires on the way, on a busy machine, is followed by one with a longer ttl.
        """
        for ttl in SHORT_TTLS:
            (uuid,) = self.send(sender, to, ttl=ttl, late=True)
            late = time.time() + ttl + 2.0  # its timestamp is a whole second
            while time.time() < late:
                if re.search(_accepted(uuid), to.log):
                    return uuid
                time.sleep(0.01)
        raise AssertionError(f"{to.name} accepted no trigger in time:\n{to.log}")

    def history(self) -> list[dict[str, Any]]:
        """Return the events of all nodes."""
        events = [event for member in self.members for event in member.events()]
        paths = {
            (event["node"], event["id"]): event["path"]
            for event in events
            if event["what"] in ("accepted", "refused")
        }
        for event in events:
            if event["what"] == "sent":
                event["id"] = f"{event['node']}/{event['uuid']}"
                event.setdefault("path", paths.get((event["to"], event["id"])))
        return events

    def problems(self) -> list[str]:
        """Return the problems of the present history."""
        events = self.history()
        return [*check(events), *check_arrivals(events)]

    def settle(self) -> list[dict[str, Any]]:
        """Wait until nothing is left to do, end all agents, and judge; return the history."""
        wait_until(
            lambda: not self.problems(),
            lambda: "\n".join([*self.problems(), *(member.log for member in self.members)]),
        )
        for member in self.members:
            if member.process is not None:
                assert member.stop() == 0, member.log
        assert self.problems() == []
        return self.history()

    def clean(self) -> None:
        """End everything."""
        for member in self.members:
            member.clean()
        shutil.rmtree(self.sockets)
