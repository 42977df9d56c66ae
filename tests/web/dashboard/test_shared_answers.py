"""Concurrent requests for the same view share an answer."""

import asyncio
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response

from localpuppet.base.errors import InvalidInputError
from localpuppet.web.dashboard.live import FRESH, MOST, SharedAnswers
from tests.web.dashboard.site import Site


class Views:
    """A view that counts its calls, and waits until the test lets it continue."""

    def __init__(self, site: Site) -> None:
        self.together = SharedAnswers(site.fleet.changes, site.clock)
        self.go = asyncio.Event()
        self.count = 0

    async def view(self, _: Request) -> Response:
        self.count += 1
        await self.go.wait()
        if self.count > 90:
            raise InvalidInputError("is bad")
        return Response(str(self.count))

    async def ask(self, query: str = "", *, event: str = "") -> str:
        server = ("127.0.0.1", 80)
        headers = [(b"last-event-id", event.encode())] if event else []
        scope = {"type": "http", "path": "/", "query_string": query.encode(), "headers": headers}
        request = Request({**scope, "scheme": "http", "server": server, "method": "GET"})
        return bytes((await self.together.answer(request, self.view)).body).decode()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_concurrent_requests_of_a_url_share_an_answer(site: Site) -> None:
    views = Views(site)
    asking = [asyncio.create_task(views.ask()) for _ in range(200)]
    other = asyncio.create_task(views.ask("page=2"))
    await asyncio.sleep(0)
    asking[0].cancel()
    views.go.set()
    assert set(await asyncio.gather(*asking[1:])) == {"1"}
    assert await other == "2"
    assert views.count == 2


async def test_a_change_or_a_second_makes_another_answer(site: Site) -> None:
    views = Views(site)
    views.go.set()
    assert [await views.ask(), await views.ask()] == ["1", "1"]
    site.fleet.answered()
    assert await views.ask() == "2"
    site.clock.advance(FRESH)
    assert await views.ask() == "3"


async def test_a_page_that_received_an_event_gets_an_answer_as_new_as_the_event(site: Site) -> None:
    views = Views(site)
    views.go.set()
    event = str(site.fleet.changes.revision)
    assert await views.ask() == "1"
    site.fleet.stir()
    assert await views.ask(event=event) == "1"
    assert await views.ask(event=str(site.fleet.changes.revision)) == "2"
    # A number of another server, or no number: the last state.
    for number in ("999999", "no number"):
        before = views.count
        site.fleet.stir()
        assert await views.ask(event=number) == str(before + 1)


async def test_changes_while_a_view_rests_are_in_one_answer(site: Site) -> None:
    views = Views(site)
    first = asyncio.create_task(views.ask())
    while not views.count:
        await asyncio.sleep(0)
    asking = []
    for _ in range(5):  # while it is being made, and while it rests
        site.fleet.stir()
        asking.append(asyncio.create_task(views.ask()))
        await asyncio.sleep(0)
        site.clock.advance(0.001)
        views.go.set()
    assert await first == "1"
    assert await asyncio.gather(*asking) == ["2"] * 5
    site.fleet.stir()
    assert await views.ask() == "3"


async def test_an_error_is_everybodys_and_few_answers_are_kept(site: Site) -> None:
    views = Views(site)
    views.go.set()
    for number in range(MOST + 1):
        await views.ask(f"page={number}")
    assert await views.ask("page=0") == str(MOST + 2)
    views.count = 90
    for _ in range(2):
        with pytest.raises(InvalidInputError):
            await views.ask("bad")
    assert views.count == 91
