"""How much others may write where an agent listens: it stays small, and hears whom it should.

The agent is a process, and its peak of memory is the kernel's. Counts are those of the attacks that
were found; of large values a quarter goes where requests are, which is three times the bar already.
"""

import asyncio
import os

import pytest

from localpuppet.bus import layout
from localpuppet.bus.key_value import MAX_VALUE
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member

BAR = 96 * 1024 * 1024
LARGE = 2000
FEWER = 500
SMALL = 1000
AT_ONCE = 8


def write(fleet: Fleet, prefix: str, *, count: int, size: int, start: int = 0) -> None:
    """Write so many values, each its own, below a prefix."""

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
        ("triggers", LARGE, MAX_VALUE),
        ("requests", FEWER, MAX_VALUE),
        ("triggers", SMALL, layout.MAX_ASKING),
        ("requests", SMALL, layout.MAX_ASKING),
    ],
    ids=["large triggers", "large requests", "maximal triggers", "maximal requests"],
)
def test_who_fills_what_an_agent_listens_to(
    any_fleet: Fleet, place: str, count: int, size: int
) -> None:
    a, b = any_fleet.add("a", "b")
    prefixes = {
        "triggers": layout.triggers_for(a.name, layout.KEYPREFIX),
        "requests": f"{layout.requests_for(a.name)}eve/",
    }
    half = count // 2
    write(any_fleet, prefixes[place], count=half, size=size)
    a.start()
    any_fleet.present(a)
    heard(any_fleet, b, a)
    write(any_fleet, prefixes[place], count=half, size=size, start=half)
    heard(any_fleet, b, a)
    assert a.memory("VmHWM") < BAR
