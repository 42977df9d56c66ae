"""Requests to nodes: signed replies, missing and rejected ones; deployments, compared releases."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import BusyError, InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName, ReleasePath, SignerName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.bus_limits import MAX_REPLY_NAME
from localpuppet.fleet.bus.key_value import Change, entries
from localpuppet.fleet.bus.layout import requests_for
from localpuppet.fleet.requests import request as messages
from localpuppet.fleet.requests import request_client
from localpuppet.fleet.requests import request_client as exchange
from localpuppet.fleet.requests.request import (
    Arguments,
    Deploy,
    DeployAction,
    NoArguments,
    NodeReply,
    Request,
)
from localpuppet.fleet.requests.request_client import (
    AT_ONCE,
    NO_ANSWER,
    TOO_OLD,
    CatalogComparison,
    NodeAnswer,
    RequestClient,
    by_change,
    compare_on,
    deploy_to,
    until_over,
)
from localpuppet.fleet.trust.signing import MessageKind
from localpuppet.node.releases.comparison import CatalogChanges
from tests.doubles.identities import Person, person, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock
from tests.doubles.simulated_loop import run_simulated

A, B = NodeName.parse("a.example.com"), NodeName.parse("b.example.com")
# How long a test waits if no reply comes (SILENCE), and at most if one comes (PATIENCE).
SILENCE, PATIENCE = 0.05, 60.0
Answering = Callable[["Site", Request], Awaitable[None]]


class Site:
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
        who = who or self.nodes[request.node]
        outcome: dict[str, str] | str = text or {"node": str(request.node)}
        await self.reply(request, messages.answer(who.signer, request, outcome, clock=self.clock))

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


async def test_a_signed_request_returns_the_signed_reply_of_the_node(site: Site) -> None:
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
    await site.reply(request, messages.answer(site.nodes[A].signer, other, {}, clock=site.clock))


async def the_request_itself(site: Site, request: Request) -> None:
    _, token = messages.ask(site.alice.signer, A, "status", NoArguments(), clock=site.clock)
    await site.reply(request, token)


FORGED: list[Answering] = [by_a_stranger, by_another_node, by_nobody, too_late]
FORGED += [to_another_request, the_request_itself]


@pytest.mark.parametrize("forged", FORGED)
async def test_a_rejected_reply_is_missing_with_a_reason(site: Site, forged: Answering) -> None:
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
    assert site.store.kept[key].until == site.clock.monotonic() + 91


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


UUID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"


def asked_of(replies: request_client.Replies, node: NodeName) -> AsyncGenerator[bytes, None]:
    at = layout.requests_of("alice", node) + UUID
    return replies.ask(b"question", at=at, node=node, request=UUID, ttl=60)


async def test_requests_share_a_watch_and_each_gets_its_own_replies() -> None:
    store = MemoryStore(now=FakeClock().monotonic)
    kv = MemoryKeyValue(store)
    nodes = [NodeName.parse(f"n{number}.example.com") for number in range(3)]
    async with request_client.Replies(kv, "alice") as replies:
        asked = [asked_of(replies, node) for node in nodes]
        waiting = [asyncio.create_task(anext(one)) for one in asked]
        while len((await kv.list(f"{layout.BASE}/requests/")).entries) < len(nodes):
            await asyncio.sleep(0)
        assert len(store.watchers) == 1
        for node in reversed(nodes):
            await request_client.reply(kv, node.encode(), caller="alice", node=node, request=UUID)
            await request_client.reply(kv, b"of bob's", caller="bob", node=node, request=UUID)
            await request_client.reply(kv, b"other", caller="alice", node=node, request=UUID[::-1])
        assert [await one for one in waiting] == [node.encode() for node in nodes]
        for one in asked:
            await one.aclose()
    assert not store.watchers


async def test_an_outage_ends_waiting_requests_and_the_next_request_watches_again() -> None:
    store = MemoryStore(now=FakeClock().monotonic)
    kv = MemoryKeyValue(store)
    async with request_client.Replies(kv, "alice") as replies:
        waiting = asyncio.create_task(anext(asked_of(replies, B)))
        while not store.watchers:
            await asyncio.sleep(0)
        store.away = True
        store.wake()
        with pytest.raises(UnavailableError):
            await waiting
        with pytest.raises(UnavailableError):
            await anext(asked_of(replies, B))
        store.away = False
        before = store.revision
        waiting = asyncio.create_task(anext(asked_of(replies, B)))
        while store.revision == before:
            await asyncio.sleep(0)
        await request_client.reply(kv, b"answer", caller="alice", node=B, request=UUID)
        assert await waiting == b"answer"


async def test_old_replies_of_a_node_are_not_read() -> None:
    """They need not expire, and only that node can remove them."""
    read: list[str] = []

    class Reading(MemoryKeyValue):
        async def watch(self, prefix: str, **how: Any) -> AsyncGenerator[Change, None]:
            async for change in super().watch(prefix, **how):
                read.extend(entry.key for entry in entries(change))
                yield change

    kv = Reading(MemoryStore(now=FakeClock().monotonic))
    for number in range(100):
        await kv.put(f"{layout.replies_of(A, 'alice')}{number}", b"old")
    async with request_client.Replies(kv, "alice") as replies:
        waiting = asyncio.create_task(anext(asked_of(replies, B)))
        while not (await kv.list(layout.requests_for(B))).entries:
            await asyncio.sleep(0)
        await request_client.reply(kv, b"answer", caller="alice", node=B, request=UUID)
        assert await waiting == b"answer"
    assert read == [layout.replies_of(B, "alice") + UUID]


async def test_endless_replies_are_not_kept_in_memory() -> None:
    kv = MemoryKeyValue(MemoryStore(now=FakeClock().monotonic))
    async with request_client.Replies(kv, "alice") as replies:
        asked = asked_of(replies, B)
        waiting = asyncio.create_task(anext(asked))
        while not (await kv.list(layout.requests_for(B))).entries:
            await asyncio.sleep(0)
        for number in range(10 * request_client.MOST_UNREAD):
            await request_client.reply(kv, b"%d" % number, caller="alice", node=B, request=UUID)
        assert await waiting == b"0"
        read = 1
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                async for _ in asked:
                    read += 1
        assert read <= request_client.MOST_UNREAD + 2


C = NodeName("c.example.com")
SILENT = NodeName("d.example.com")
ARGS = Deploy(release=ReleasePath("foo/tags/r2"), action=DeployAction.APPLY, serial=1)
# The statuses of nodes: C has a version without assignments.
TOLD: dict[str, dict[str, Json]] = {
    A: {"assignment": {"serial": 4}},
    B: {"assignment": {"serial": -7}},
    C: {"state": "idle"},
}


class Nodes(Site):
    """Nodes on a bus: B refuses, and A is done at the third request, or never."""

    def __init__(self, directory: Path, *, never: bool = False) -> None:
        super().__init__(directory)
        self.nodes[C] = person(C)
        (directory / "all").mkdir()
        self.verifier = verifier(directory / "all", self.alice, *self.nodes.values())
        self.never = never
        self.serials: list[int] = []

    async def serve(self, _: Site, request: Request) -> None:
        args = request.args
        outcome: dict[str, Json] | str = TOLD[request.node]
        if isinstance(args, Deploy):
            self.serials.append(args.serial)
            outcome = {"state": "done" if (len(self.serials) > 3 and not self.never) else "working"}
            if request.node == B:
                outcome = "denied by policy"
        node = self.nodes[request.node]
        await self.reply(request, messages.answer(node.signer, request, outcome, clock=self.clock))

    def deploy(self, names: Sequence[NodeName], patience: float) -> dict[str, NodeAnswer]:
        async def work() -> dict[str, NodeAnswer]:
            async with AsyncExitStack() as stack:
                for node in self.nodes:
                    await stack.enter_async_context(self.answering(node, self.serve))
                client, first = self.client(), names[0]
                if len(names) == 1:
                    return {
                        first: await until_over(client, first, "deploy", ARGS, patience=patience)
                    }
                return await deploy_to(client, names, ARGS, patience=patience)

        return run_simulated(work())


def test_each_node_is_asked_until_it_is_done_or_refuses(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    found = nodes.deploy([A, B, C, SILENT], 60.0)
    assert [answer.ok for answer in found.values()] == [True, False, False, False]
    assert [answer.unresponsive for answer in found.values()] == [False, False, False, True]
    assert found[B].to_dict()["error"] == "denied by policy"
    assert found[C].to_dict()["error"] == TOO_OLD
    assert sorted(nodes.serials) == [1, 5, 5, 5], "newer than its own, and C was not asked"


@pytest.mark.parametrize("patience", [1.0, 600.0])
def test_a_node_that_does_not_finish_is_unresponsive(tmp_path: Path, patience: float) -> None:
    found = Nodes(tmp_path, never=True).deploy([A], patience)[A]
    assert found.unresponsive
    assert f"still working after {patience:g} s" in found.problem


NODES = [NodeName(f"n{number}.example.com") for number in range(11)]
APP_R2 = ReleasePath("app/tags/r2")
GOOD: dict[str, Any] = {"state": "done", "added": ["File[/x]"], "removed": [], "left_out": 3}
GOOD["changed"] = {"File[/y]": ["mode"]}
NO_REPLY = NodeAnswer(reply=None, problem="silent")
FOUND = CatalogChanges(added=("File[/x]",), changed={"File[/y]": ("mode",)}, left_out=3)


def replied(told: Any) -> NodeAnswer:
    ok = isinstance(told, dict)
    reply = NodeReply(
        node=SignerName(NODES[0]),
        caller=SignerName("alice"),
        iat=1,
        exp=2,
        in_reply_to="3f2504e0-4f89-41d3-9a0c-0305e82c3301",
        ok=ok,
        result=told if ok else {},
        error=None if ok else told,
    )
    return NodeAnswer(reply=reply)


class Client(RequestClient):
    """Nodes that answer `working` twice, and then as the test wants."""

    def __init__(self, answers: Sequence[NodeAnswer]) -> None:
        self.answers = dict(zip(NODES, answers, strict=False))
        self.asked: list[NodeName] = []

    async def ask(
        self, node: NodeName, action: str, args: Arguments, *, patience: float
    ) -> NodeAnswer:
        assert (action, args.to_dict()) == ("compile", {"release": APP_R2})
        self.asked.append(node)
        if self.asked.count(node) < 3:
            return replied({"state": "working"})
        return self.answers[node]


def compared(*answers: NodeAnswer) -> list[CatalogComparison]:
    nodes = NODES[: len(answers)]
    found = run_simulated(compare_on(Client(answers), nodes, APP_R2, patience=60))
    assert list(found) == nodes
    return list(found.values())


def test_nodes_are_asked_until_they_have_a_result() -> None:
    answers = compared(replied(GOOD), replied("denied by policy line 1"), NO_REPLY)
    problems = [CatalogComparison(problem=one) for one in ("denied by policy line 1", "silent")]
    assert answers == [CatalogComparison(changes=FOUND), *problems]


@pytest.mark.parametrize(
    "change",
    [
        {"added": None},
        {"removed": "x"},
        {"changed": []},
        {"left_out": -1},
        {"left_out": True},
        {"added": ["File[/x]"] * (request_client.MOST_TOLD + 1)},
    ],
)
def test_an_unknown_answer_is_a_problem_and_not_an_empty_change(change: dict[str, Any]) -> None:
    (found,) = compared(replied(GOOD | change))
    assert found.changes is None
    assert "unknown answer" in found.problem


def test_names_from_nodes_are_escaped_and_shortened() -> None:
    told = GOOD | {"added": ["a\nb\x1b[2J", 3, "x" * 1000], "changed": {"y": "z"}}
    (found,) = compared(replied(told))
    assert found.changes is not None
    assert [len(name) for name in found.changes.added][1:] == [1, MAX_REPLY_NAME]
    assert "\n" not in found.changes.added[0]
    assert found.changes.changed == {"y": ()}


def test_only_so_much_is_kept_of_all() -> None:
    names = [f"File[/{number}]" for number in range(request_client.MOST_TOLD)]
    full = replied({"added": names, "removed": [], "changed": {}, "left_out": 0})
    fitting = request_client.MOST_KEPT // request_client.MOST_TOLD
    *first, last = compared(*[full] * fitting, replied(GOOD))
    assert [one.changes for one in first] == [CatalogChanges(added=tuple(names))] * fitting
    assert last.changes == CatalogChanges(left_out=5)


def test_nodes_with_equal_changes_are_grouped() -> None:
    changed = CatalogComparison(changes=FOUND)
    found = {NODES[0]: changed, NODES[1]: CatalogComparison(problem="x"), NODES[2]: changed}
    assert by_change(found) == [(FOUND, [NODES[0], NODES[2]])]


async def test_only_tags_are_compared() -> None:
    with pytest.raises(InvalidInputError, match="app/trunk is not a tag"):
        await compare_on(Client([]), [], ReleasePath("app/trunk"), patience=1)
