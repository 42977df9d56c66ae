"""How much others may write where an agent listens: it stays small, and still gets true messages.

The agent is a process, and its peak of memory is the kernel's. Counts are those of the attacks that
were found; of large values there are fewer: a quarter of a gigabyte is three times the bar already.
"""

import asyncio
import json
import os
from collections.abc import Callable

import pytest

from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.bus_limits import MAX_ASKING, MAX_VALUE
from tests.rigs.bus.lying import MIB, Door, behind_a_door
from tests.rigs.buses import SHORT
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.preloaded import OWN_PYTHON
from tests.rigs.waiting import wait_until

BAR = 96 * MIB
LARGE = 500
SMALL = 1000
AT_ONCE = 8


def write(fleet: Fleet, prefix: str, *, count: int, size: int, start: int = 0) -> None:
    """Write `count` different values below a prefix."""

    async def work() -> None:
        slots = asyncio.Semaphore(AT_ONCE)
        async with fleet.bus.open() as kv:

            async def one(number: int) -> None:
                async with slots:
                    await kv.put(f"{prefix}{number:06}", os.urandom(size))

            await asyncio.gather(*(one(number) for number in range(start, start + count)))

    asyncio.run(work())


def heard(fleet: Fleet, sender: Member, receiver: Member) -> None:
    """Send an honest trigger, and wait until it is accepted."""
    (uuid,) = fleet.send(sender, receiver)
    fleet.accepted(receiver, uuid)


@pytest.mark.parametrize(
    ("place", "count", "size"),
    [
        pytest.param("triggers", LARGE, MAX_VALUE, id="large triggers"),
        pytest.param("requests", SMALL, MAX_ASKING, id="maximal requests"),
    ],
)
def test_an_agent_stays_small_if_others_fill_its_keys(
    nats_fleet: Fleet, place: str, count: int, size: int
) -> None:
    a, b = nats_fleet.add("a", "b")
    prefixes = {
        "triggers": layout.triggers_for(a.name, layout.KEYPREFIX),
        "requests": f"{layout.requests_for(a.name)}eve/",
    }
    half = count // 2
    write(nats_fleet, prefixes[place], count=half, size=size)
    a.start(before=OWN_PYTHON)
    nats_fleet.present(a)
    heard(nats_fleet, b, a)
    write(nats_fleet, prefixes[place], count=half, size=size, start=half)
    heard(nats_fleet, b, a)
    assert a.memory("VmHWM") < BAR


# The bytes for an agent before a lying server stops, or the number of its connections.
TOLD = 64 * MIB
CAME = 5


@pytest.mark.parametrize(("bus", "lie"), [("etcd", "etcd, a watch"), ("nats", "nats, a message")])
def test_an_agent_stays_small_with_a_lying_server_and_recovers(
    lent_fleet: Callable[[str], Fleet], bus: str, lie: str
) -> None:
    """tests/fleet/bus/test_lying_servers.py has all lies; an agent also reconnects."""
    fleet = lent_fleet(bus)
    fleet.bus.timeout = SHORT
    a, b = fleet.add("a", "b")
    with behind_a_door(lie) as door:
        lead(a, door)
        a.start(before=OWN_PYTHON)
        wait_until(
            lambda: door.came >= CAME or door.told >= TOLD,
            lambda: f"{door.came} connections, {door.told} bytes: {a.log}",
        )
        assert fleet.bus.server.url != door.url
        door.turn(fleet.bus.server.url)
        fleet.present(a)
        heard(fleet, b, a)
        assert a.memory("VmHWM") < BAR


def lead(member: Member, door: Door) -> None:
    """Have a member use only the server behind a door."""
    file = member.root / "localpuppet.yaml"
    settings = json.loads(file.read_text())
    settings["buses"][settings["bus"]]["servers"] = [door.url]
    member.node.settings(**settings)
