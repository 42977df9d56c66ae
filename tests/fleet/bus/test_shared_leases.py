"""Which writes share a lease, and for how long a value stays all the same."""

import asyncio

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.machine.process_table import seconds_since_boot
from localpuppet.fleet.bus.etcd_bus import SharedLeases


class Server:
    def __init__(self) -> None:
        self.now = 0.0
        self.granted: list[tuple[float, int]] = []
        self.away = False
        self.leases = SharedLeases(self.grant, monotonic=lambda: self.now)

    async def grant(self, seconds: int) -> int:
        await asyncio.sleep(0)
        if self.away:
            raise UnavailableError("away", where="etcd")
        self.granted.append((self.now, seconds))
        return len(self.granted)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.mark.parametrize(("ttl", "asked"), [(0.5, 2), (10.0, 11), (30.0, 33), (60.0, 66), (1e6, 6)])
async def test_a_value_stays_for_its_ttl_whenever_it_shared_a_lease(ttl: float, asked: int) -> None:
    server = Server()
    for _ in range(100):
        lease = await server.leases.of(ttl)
        began, seconds = server.granted[lease.id - 1]
        assert lease.covers_until >= server.now, "a write that begins now may take a moment"
        assert began + seconds >= lease.covers_until + ttl
        server.now += 0.1
    assert server.granted[0][1] == (asked if ttl < 1e6 else 1e6 + asked)


async def test_replies_and_statuses_within_seconds_share_a_lease(server: Server) -> None:
    for _ in range(3):  # a hold, a run and its end, within five seconds
        await asyncio.gather(*(server.leases.of(60.0) for _ in range(2)))
        server.now += 1.7
    assert len(server.granted) == 1
    server.now += 0.2
    await server.leases.of(60.0)
    await server.leases.of(30.0)
    assert [seconds for _, seconds in server.granted] == [66, 66, 33]


async def test_a_short_ttl_is_hardly_longer(server: Server) -> None:
    """A value that others wait for, such as a lock, stays one second longer."""
    await server.leases.of(5.0)
    server.now += 0.3
    await server.leases.of(5.0)
    assert server.granted == [(0.0, 6), (0.3, 6)]


async def test_a_lease_that_was_not_granted_is_requested_again(server: Server) -> None:
    server.away = True
    with pytest.raises(UnavailableError):
        await server.leases.of(60.0)
    server.away = False
    assert (await server.leases.of(60.0)).id == 1
    assert (await server.leases.of(None)).id == 0
    server.leases.close()


async def test_a_lease_with_which_a_write_failed_is_given_to_no_other(server: Server) -> None:
    lease = await server.leases.of(60.0)
    other = await server.leases.of(30.0)
    server.leases.forget(lease)
    assert (await server.leases.of(60.0)).id == 3
    server.leases.forget(lease)
    assert [(await server.leases.of(ttl)).id for ttl in (60.0, 30.0)] == [3, other.id]


def test_the_time_in_which_this_machine_slept_counts() -> None:
    """The server's clock does not stop: a lease that was shared meanwhile would be too short."""
    assert SharedLeases(Server().grant).monotonic is seconds_since_boot
