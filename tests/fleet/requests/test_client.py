"""Requests to nodes: signed replies, missing replies, and replies that the client rejects."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from localpuppet.base.errors import BusyError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.key_value import entries
from localpuppet.fleet.bus.layout import requests_for
from localpuppet.fleet.requests import request as messages
from localpuppet.fleet.requests import request_client as exchange
from localpuppet.fleet.requests.request import NoArguments, Request
from localpuppet.fleet.requests.request_client import AT_ONCE, NO_ANSWER, NodeAnswer, RequestClient
from localpuppet.fleet.trust.signing import MessageKind
from tests.doubles.identities import Person, person, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock

A, B = NodeName.parse("a.example.com"), NodeName.parse("b.example.com")
# How long a test waits if no reply comes (SILENCE), and at most if one comes (PATIENCE).
SILENCE, PATIENCE = 0.05, 60.0
Answering = Callable[["Site", Request], Awaitable[None]]


class Site:
    """A store, a caller, and nodes that answer."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(now=self.clock.monotonic)
        self.alice = person("alice")
        self.nodes = {node: person(node) for node in (A, B)}
        self.stranger = person("c.example.com")
        self.verifier = verifier(directory, self.alice, *self.nodes.values())
        self.asked: list[Request] = []
        self.open = 0
        self.most = 0

    def client(self) -> RequestClient:
        return RequestClient(
            MemoryKeyValue(self.store),
            signer=self.alice.signer,
            verifier=self.verifier,
            clock=self.clock,
        )

    async def reply(self, request: Request, token: bytes) -> None:
        await exchange.reply(
            MemoryKeyValue(self.store),
            token,
            caller=request.caller,
            node=request.node,
            request=request.jti,
        )

    async def fine(self, request: Request, who: Person | None = None, text: str = "") -> None:
        """Answer as a node does."""
        who = who or self.nodes[request.node]
        outcome: dict[str, str] | str = text or {"node": str(request.node)}
        token = messages.answer(who.signer, request, outcome, clock=self.clock)
        await self.reply(request, token)

    @asynccontextmanager
    async def answering(self, node: NodeName, answer: Answering) -> AsyncIterator[None]:
        """Have a node answer each request."""

        async def serve() -> None:
            kv = MemoryKeyValue(self.store)
            async for change in kv.watch(requests_for(node)):
                for entry in entries(change):
                    signed = self.verifier.verify(entry.value, MessageKind.REQUEST)
                    request = Request.parse(signed.payload)
                    self.asked.append(request)
                    await answer(self, request)

        task = asyncio.create_task(serve())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_signed_request_returns_the_signed_reply_of_the_node(
    site: Site,
) -> None:
    async with site.answering(A, Site.fine):
        found = await site.client().ask(A, "status", NoArguments(), patience=PATIENCE)
    assert found.reply is not None
    assert (found.ok, found.unresponsive, found.problem) == (True, False, "")
    assert found.to_dict() == {"ok": True, "result": {"node": A}, "error": None}
    (request,) = site.asked
    assert (request.caller, request.node, request.action) == ("alice", A, "status")
    assert not site.store.watchers, "no watch is left"


async def test_a_refusal_of_a_node_is_a_reply(site: Site) -> None:
    async with site.answering(A, lambda site, request: site.fine(request, text="not allowed")):
        found = await site.client().ask(A, "status", NoArguments(), patience=PATIENCE)
    assert (found.ok, found.unresponsive) == (False, False)
    assert found.to_dict() == {"ok": False, "result": {}, "error": "not allowed"}


async def test_refusals_are_looked_at_before_they_are_returned(site: Site) -> None:
    looked: list[NodeName] = []

    async def heed(node: NodeName, _: object) -> None:
        looked.append(node)
        raise BusyError("another controller continues")

    client = site.client()
    client.heed_refusals(heed)
    async with site.answering(A, lambda site, request: site.fine(request)):
        assert (await client.ask(A, "status", NoArguments(), patience=PATIENCE)).ok
    assert looked == []
    async with site.answering(A, lambda site, request: site.fine(request, text="not allowed")):
        with pytest.raises(BusyError):
            await client.ask(A, "status", NoArguments(), patience=PATIENCE)
    assert looked == [A]


async def test_a_missing_reply_is_a_separate_result(site: Site) -> None:
    found = await site.client().ask(A, "status", NoArguments(), patience=SILENCE)
    assert found == NodeAnswer(reply=None, problem=NO_ANSWER)
    assert found.to_dict() == {"ok": False, "unresponsive": True, "result": {}, "error": NO_ANSWER}
    assert not site.store.watchers
    earlier = len(site.store.kept)
    asked = asyncio.create_task(site.client().ask(A, "status", NoArguments(), patience=SILENCE))
    while len(site.store.kept) == earlier:
        await asyncio.sleep(0)
    site.store.full = True  # the node has the request, and no room for its reply
    assert (await asked).problem == "cannot answer: the memory is full"


async def by_a_stranger(site: Site, request: Request) -> None:
    await site.fine(request, site.stranger)


async def by_another_node(site: Site, request: Request) -> None:
    await site.fine(request, site.nodes[B])


async def by_nobody(site: Site, request: Request) -> None:
    await site.reply(request, b"rubbish")


async def too_late(site: Site, request: Request) -> None:
    site.clock.advance(-3600)
    token = messages.answer(site.nodes[A].signer, request, {}, clock=site.clock)
    site.clock.advance(3600)
    await site.reply(request, token)


async def to_another_request(site: Site, request: Request) -> None:
    other, _ = messages.ask(site.alice.signer, A, "status", NoArguments(), clock=site.clock)
    token = messages.answer(site.nodes[A].signer, other, {}, clock=site.clock)
    await site.reply(request, token)


async def the_request_itself(site: Site, request: Request) -> None:
    _, token = messages.ask(site.alice.signer, A, "status", NoArguments(), clock=site.clock)
    await site.reply(request, token)


FORGED: list[Answering] = [
    by_a_stranger,
    by_another_node,
    by_nobody,
    too_late,
    to_another_request,
    the_request_itself,
]


@pytest.mark.parametrize("forged", FORGED)
async def test_a_rejected_reply_counts_as_a_missing_reply_with_a_reason(
    site: Site, forged: Answering
) -> None:
    found = NodeAnswer(reply=None, problem=NO_ANSWER)
    patience = SILENCE
    async with site.answering(A, forged):
        while found.problem == NO_ANSWER:  # a busy machine may need longer
            patience *= 2
            found = await site.client().ask(A, "status", NoArguments(), patience=patience)
    assert (found.ok, found.unresponsive) == (False, True)
    assert found.problem.startswith("rejected a reply: ")


@pytest.mark.parametrize("forged", FORGED)
async def test_a_forged_reply_does_not_keep_the_true_one_out(site: Site, forged: Answering) -> None:
    async def both(site: Site, request: Request) -> None:
        await forged(site, request)
        for _ in range(20):  # the client sees it before the true reply replaces it
            await asyncio.sleep(0)
        await site.fine(request)

    async with site.answering(A, both):
        found = await site.client().ask(A, "status", NoArguments(), patience=PATIENCE)
    assert found.ok


async def test_a_request_lives_as_long_as_its_caller_waits(site: Site) -> None:
    async with site.answering(A, Site.fine):
        for patience in (1.0, 90.5):
            await site.client().ask(A, "status", NoArguments(), patience=patience)
    assert [request.exp - request.iat for request in site.asked] == [messages.LIFE, 91]
    (key,) = [key for key in site.store.kept if site.asked[1].jti in key and "requests" in key]
    until = site.store.kept[key].until
    assert until == site.clock.monotonic() + 91


async def test_an_unreachable_store_is_an_error_and_not_a_missing_reply(site: Site) -> None:
    site.store.away = True
    with pytest.raises(UnavailableError):
        await site.client().ask(A, "status", NoArguments(), patience=PATIENCE)
    with pytest.raises(UnavailableError):
        await site.client().ask_all([A, B], "status", NoArguments(), patience=PATIENCE)


async def test_replies_of_several_nodes_have_the_order_of_the_request(site: Site) -> None:
    found: dict[str, NodeAnswer] = {}
    patience = SILENCE
    async with site.answering(B, Site.fine):
        while not found or found[B].unresponsive:  # a busy machine may need longer
            patience *= 2
            found = await site.client().ask_all([B, A], "status", NoArguments(), patience=patience)
    assert list(found) == [B, A]
    assert found[B].to_dict()["result"] == {"node": B}
    assert found[A].unresponsive


async def test_a_request_to_no_node_has_no_replies(site: Site) -> None:
    assert await site.client().ask_all([], "status", NoArguments(), patience=PATIENCE) == {}


async def test_the_number_of_concurrent_requests_is_limited(site: Site) -> None:
    names = [NodeName.parse(f"n{number:03}.example.com") for number in range(AT_ONCE + 10)]
    asking = asyncio.create_task(
        site.client().ask_all(names, "status", NoArguments(), patience=PATIENCE)
    )
    before = -1
    while len(site.store.kept) > before:  # until nothing moves any more
        before = len(site.store.kept)
        for _ in range(20):
            await asyncio.sleep(0)
    assert (before, len(site.store.watchers)) == (AT_ONCE, 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
