"""Which listing of the bus answers a query.

Without an agent, the queries of one run share a listing, and all others list the bus. The first
queries of an agent wait for its first listing.
"""

import asyncio
from contextlib import closing
from datetime import UTC, datetime

from localpuppet.base.formats.names import RunId, SignerName
from localpuppet.fleet.app import FleetApp, lent
from localpuppet.fleet.bus.layout import INVENTORY
from localpuppet.fleet.inventory.query.functions import FunctionCall
from localpuppet.fleet.inventory.reading import InventoryAnswer
from localpuppet.fleet.trust.key_files import TrustedKeys
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner
from localpuppet.node.app import NodeApp
from tests.doubles.ports import FakeLog
from tests.fleet.inventory.entries import entry
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member


def run_of_now() -> RunId:
    return RunId.parse(f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-00aa")


async def says(fleet: Fleet, member: Member) -> None:
    """Have a node publish an entry."""
    said = entry(str(member.name), at=datetime.now(UTC).timestamp())
    signer = MessageSigner(SignerName(member.name), member.key.load())
    async with fleet.bus.open() as kv:
        token = signer.sign(said.to_payload(), MessageKind.INVENTORY)
        await kv.put(INVENTORY + member.name, token)


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
    answer = await asking
    assert isinstance(answer, InventoryAnswer)


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
