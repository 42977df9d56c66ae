"""Which listing of the bus answers a query.

Without an agent, the queries of one run share a listing, and all others list the bus. The first
queries of an agent wait for its first listing.
"""

import asyncio
from contextlib import closing
from datetime import UTC, datetime

import pytest

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import RunId, SignerName
from localpuppet.fleet.agent.entry_lender import FIRST_LISTING, SHARED, FirstListing, is_shared
from localpuppet.fleet.app import FleetApp, lent
from localpuppet.fleet.bus.layout import INVENTORY
from localpuppet.fleet.inventory.query.functions import FunctionCall
from localpuppet.fleet.inventory.reading import InventoryAnswer
from localpuppet.fleet.trust.key_files import TrustedKeys
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner
from localpuppet.node.app import NodeApp
from tests.doubles.ports import FakeClock, FakeLog
from tests.fleet.inventory.entries import entry
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member


def run_of_now() -> RunId:
    return RunId.parse(f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-00aa")


async def says(fleet: Fleet, member: Member) -> None:
    said = entry(str(member.name), at=datetime.now(UTC).timestamp())
    signer = MessageSigner(SignerName(member.name), member.key.load())
    async with fleet.bus.open() as kv:
        await kv.put(INVENTORY + member.name, signer.sign(said.to_payload(), MessageKind.INVENTORY))


async def test_queries_of_a_run_see_the_same_state(fleet: Fleet) -> None:
    a, b, me = fleet.add("a", "b", "me")
    inventory = FleetApp(NodeApp(str(me.root)))

    async def nodes(run: RunId | None) -> list[str]:
        async with inventory.entries.reader(lambda _: None, run) as view:
            return [one.node for one in view.entries()]

    await says(fleet, a)
    first = run_of_now()
    assert await nodes(first) == [a.name]
    await says(fleet, b)
    assert await nodes(first) == [a.name]
    assert await nodes(run_of_now()) == [a.name, b.name]
    assert await nodes(first) == [a.name, b.name]  # a moment later, and newer

    TrustedKeys(me.root / "trusted").remove(SignerName(a.name))
    assert await nodes(first) == [b.name]  # a node that is no longer trusted is out at once
    TrustedKeys(me.root / "trusted").remove(SignerName(b.name))
    assert await nodes(None) == []


async def test_a_query_in_the_first_second_of_an_agent_waits_for_the_listing(fleet: Fleet) -> None:
    a, me = fleet.add("a", "me")
    await says(fleet, a)
    inventory = FleetApp(NodeApp(str(me.root)))
    question = FunctionCall.of("query_nodes", ["role=web"])
    asking = asyncio.create_task(inventory.inventory_calls().ask(question))
    await asyncio.sleep(0.3)
    assert not asking.done()
    async with fleet.bus.open() as kv:
        await inventory.follower(lent(kv), FakeLog()).list_once()
    assert isinstance(await asking, InventoryAnswer)


def test_a_view_counts_for_queries_while_it_is_recent(fleet: Fleet) -> None:
    (me,) = fleet.add("me")
    inventory = FleetApp(NodeApp(str(me.root)))
    now = datetime.now(UTC).timestamp()
    with closing(inventory.view()) as view:
        assert not inventory.entries.is_current(view), "never read"
        view.note(current=now)
        assert inventory.entries.is_current(view)
        view.note(current=now - 3600.0)
        assert not inventory.entries.is_current(view), "older than inventory.max_stale"


NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("current", "begun", "shared"),
    [
        (NOW - 1, NOW - 2, True),
        (NOW - SHARED, NOW - SHARED, True),
        (NOW - SHARED - 1, NOW - SHARED - 2, False),  # a long compilation gets the new state
        (NOW - 2, NOW - 1, False),  # it was another run's
        (NOW + 1, NOW - 2, False),  # the clock was set back
        (None, NOW - 2, False),
    ],
)
def test_a_run_shares_its_listing(current: float | None, begun: float, *, shared: bool) -> None:
    assert is_shared(current, begun=begun, now=NOW) is shared


class ViewOfTurns:
    """A view that is current from a given check on; each check takes a second of the clock."""

    def __init__(self, clock: FakeClock, *, current_from: float) -> None:
        self.clock = clock
        self.current_from = current_from
        self.checks = 0

    def is_current(self) -> bool:
        self.checks += 1
        self.clock.advance(1)
        return self.checks >= self.current_from


async def test_the_first_query_waits_until_the_bus_was_listed() -> None:
    clock = FakeClock()
    view = ViewOfTurns(clock, current_from=3)
    listing = FirstListing(view.is_current, clock, recheck=0)
    await listing.wait()
    assert view.checks == 3
    await listing.wait()
    assert view.checks == 3  # from then on, the age of the view decides


async def test_a_bus_that_is_away_delays_only_the_first_seconds_of_an_agent() -> None:
    clock = FakeClock()
    view = ViewOfTurns(clock, current_from=float("inf"))
    listing = FirstListing(view.is_current, clock, recheck=0)
    await asyncio.gather(listing.wait(), listing.wait())
    assert view.checks == FIRST_LISTING
    await listing.wait()
    assert view.checks == FIRST_LISTING


async def test_a_view_that_cannot_be_read_is_an_error() -> None:
    def refuse() -> bool:
        raise StateError("is damaged", where="view.sqlite")

    with pytest.raises(StateError, match="is damaged"):
        await FirstListing(refuse, FakeClock()).wait()
