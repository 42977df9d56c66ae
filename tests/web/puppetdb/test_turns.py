"""A client with many queries waits for its own; its equal questions are evaluated once."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from localpuppet.base.errors import BusyError, InvalidInputError
from localpuppet.fleet.inventory.query.evaluating import QueryDeadlineError
from localpuppet.web.puppetdb import answering
from localpuppet.web.puppetdb.answers import AnswerBodies, BodyForm, WrittenAnswer
from localpuppet.web.puppetdb.api_requests import endpoint_of, from_texts
from tests.doubles.ports import FakeClock


class Desk:
    """Clients at turns: `order` has those that got one, in order."""

    def __init__(self, limits: answering.TurnLimits) -> None:
        self.turns = answering.Turns(limits)
        self.order: list[str] = []
        self.running: dict[str, list[asyncio.Event]] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def come(self, *clients: str) -> None:
        for client in clients:
            self.tasks.append(asyncio.create_task(self._hold(client)))
            await asyncio.sleep(0)

    async def _hold(self, client: str) -> None:
        async with self.turns.turn(client):
            end = asyncio.Event()
            self.order.append(client)
            self.running.setdefault(client, []).append(end)
            await end.wait()

    async def end(self, client: str) -> None:
        self.running[client].pop().set()
        for _ in range(4):
            await asyncio.sleep(0)

    async def leave(self) -> None:
        for task in self.tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, BusyError):
                await task


async def test_the_next_turn_belongs_to_the_next_client() -> None:
    desk = Desk(answering.TurnLimits(running=1, running_of_one=1))
    await desk.come("a", "a", "a", "a", "b", "c", "b")
    for client in "abcab":
        await desk.end(client)
    assert "".join(desk.order) == "abcaba"
    await desk.leave()


async def test_one_client_does_not_get_all_turns() -> None:
    desk = Desk(answering.TurnLimits(running=3, running_of_one=2))
    await desk.come("a", "a", "a", "a", "b")
    assert "".join(desk.order) == "aab"
    await desk.leave()


@pytest.mark.parametrize(("client", "most"), [("a", 2), ("b", 3)])
async def test_too_many_waiting_queries_are_rejected(client: str, most: int) -> None:
    desk = Desk(answering.TurnLimits(running=1, running_of_one=1, waiting=3, waiting_of_one=2))
    await desk.come("a", "a", "a", *(["b"] if client == "b" else []))
    with pytest.raises(BusyError, match=f"{most} queries are waiting already"):
        async with desk.turns.turn(client):
            pass
    await desk.leave()


async def test_a_client_that_gives_up_leaves_its_place() -> None:
    desk = Desk(answering.TurnLimits(running=1, running_of_one=1))
    await desk.come("a", "b", "c")
    desk.tasks[1].cancel()
    await desk.end("a")
    assert "".join(desk.order) == "ac"
    await desk.leave()
    await desk.come("b")  # all turns are free again
    assert desk.order[-1] == "b"
    await desk.leave()


MANY = 20


class Bench:
    """One turn for all clients, which is taken until `free` is set; counts evaluations."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self.bodies = AnswerBodies(directory)
        self.turns = answering.Turns(answering.TurnLimits(running=1, running_of_one=1))
        self.shared = answering.AnswerSharing(self.turns)
        self.free = asyncio.Event()
        self.evaluated: list[str] = []
        self.state = "before"
        self.error: Exception | None = None
        self.deadlines: list[answering.RequestDeadline] = []

    def ask(
        self, client: str = "a", question: bytes = b"q", *, gzip: bool = False, seconds: float = 60
    ) -> "asyncio.Task[WrittenAnswer]":
        key = answering.AnswerKey(client=client, question=question, form=BodyForm(gzip=gzip))
        self.deadlines.append(answering.RequestDeadline(self.clock.monotonic, seconds))

        async def evaluate(shared: answering.SharedDeadline) -> WrittenAnswer:
            self.evaluated.append(client)
            shared.check()
            if self.error is not None:
                raise self.error
            writer = self.bodies.writer(key.form)
            writer.write(f'["{self.state}"]')
            return writer.end()

        return asyncio.create_task(self.shared.get(key, self.deadlines[-1], evaluate))

    async def taken(self) -> None:
        """Take the turn, until `free` is set."""
        begun = asyncio.Event()

        async def hold() -> None:
            async with self.turns.turn("other"):
                begun.set()
                await self.free.wait()

        self.holding = asyncio.create_task(hold())
        await begun.wait()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def text(answer: WrittenAnswer) -> str:
    """Read an answer as a request does, and close it."""
    read = answer.body.read(0, 1000).decode()
    answer.body.close()
    return read


async def test_equal_questions_are_evaluated_once_for_all_requests(bench: Bench) -> None:
    await bench.taken()
    asked = [bench.ask() for _ in range(MANY)]
    await settle()
    bench.free.set()
    answers = await asyncio.gather(*asked)
    assert bench.evaluated == ["a"]
    for left in range(MANY, 0, -1):
        assert bench.bodies.used > 0, left
        assert text(answers.pop()) == '["before"]'
    assert bench.bodies.used == 0


async def test_another_client_question_or_form_is_evaluated_by_itself(bench: Bench) -> None:
    await bench.taken()
    asked = [
        *(bench.ask(), bench.ask("b"), bench.ask("a", b"other"), bench.ask(gzip=True)),
        *(bench.ask(), bench.ask("b")),
    ]
    bench.free.set()
    for answer in await asyncio.gather(*asked):
        text(answer)
    assert sorted(bench.evaluated) == ["a", "a", "a", "b"]


async def test_an_answer_is_never_older_than_its_request(bench: Bench) -> None:
    await bench.taken()
    bench.free.set()
    assert text(await bench.ask()) == '["before"]'
    bench.state = "after"
    assert text(await bench.ask()) == '["after"]'
    assert len(bench.evaluated) == 2


async def test_a_request_that_ends_does_not_end_the_others(bench: Bench) -> None:
    await bench.taken()
    short, gone, long = bench.ask(seconds=0), bench.ask(), bench.ask()
    with pytest.raises(QueryDeadlineError, match="exceeded timeout: 0 s"):
        await short
    bench.deadlines[1].cancelled = True
    bench.free.set()
    answers = await asyncio.gather(gone, long)
    assert [*map(text, answers)] == ['["before"]'] * 2
    assert (bench.evaluated, bench.bodies.used) == (["a"], 0)


async def test_without_requests_nothing_is_evaluated_until_the_next_one(bench: Bench) -> None:
    await bench.taken()
    with pytest.raises(QueryDeadlineError):
        await bench.ask(seconds=0)
    later = bench.ask()
    bench.free.set()
    assert text(await later) == '["before"]'
    assert bench.evaluated == ["a"]


async def test_an_error_is_shared_and_the_next_request_begins_again(bench: Bench) -> None:
    await bench.taken()
    bench.error = InvalidInputError("malformed")
    asked = [bench.ask(), bench.ask()]
    bench.free.set()
    for one in asked:
        with pytest.raises(InvalidInputError, match="malformed"):
            await one
    bench.error = None
    assert text(await bench.ask()) == '["before"]'
    assert len(bench.evaluated) == 2


def test_a_digest_depends_on_the_path_and_on_each_parameter_of_the_question() -> None:
    def digest(*path: str, **parameters: str) -> bytes:
        endpoint = endpoint_of(path)
        assert endpoint is not None
        return from_texts([*parameters.items()], endpoint).digest(path)

    different = [
        digest("nodes"),
        digest("facts"),
        digest("nodes", "a"),
        digest("nodes", limit="1"),
        digest("nodes", offset="1"),
        digest("nodes", query='["=","certname","a"]'),
        digest("nodes", query='["=","certname","b"]'),
        digest("event-counts", summarize_by="certname"),
        digest("event-counts", summarize_by="resource"),
    ]
    assert len({*different}) == len(different)
    assert digest("nodes", limit="1", timeout="5") == digest("nodes", limit="1")
