"""The dashboard's queries of the inventory."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.inventory.entry import CatalogQuery, InventoryEntry
from localpuppet.web.dashboard.inventory_questions import Inventory
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.entries import entry
from tests.web.dashboard.site import Site


class Slow(MemoryInventory):
    """An inventory that is read when a test lets it be; counts how often."""

    def __init__(self, entries: list[InventoryEntry], *, current: float) -> None:
        super().__init__(entries, current=current)
        self.go = threading.Event()
        self.looks = self.questions = 0

    def check(self) -> None:
        self.questions += 1

    def entries(self) -> Iterator[InventoryEntry]:
        self.looks += 1
        self.go.wait(20)
        return super().entries()


@pytest.fixture
def slow(tmp_path: Path) -> tuple[Slow, Inventory]:
    site = Site(tmp_path)
    asks = (CatalogQuery(text='servers_with_role("web")', digest="x"),)
    entries = [entry("lb", at=0.0, queries=asks), entry("web", at=0.0, roles=("web",))]
    view = Slow(entries, current=site.now())
    return view, Inventory(view, site.ask)


async def test_requests_during_a_search_for_links_share_its_result(
    slow: tuple[Slow, Inventory],
) -> None:
    view, inventory = slow
    with pytest.raises(UnavailableError, match="the search for links is still running"):
        await inventory.links(patience=0.01)
    waiting = [asyncio.create_task(inventory.links()) for _ in range(3)]
    await asyncio.sleep(0)
    view.go.set()
    first, *others = await asyncio.gather(*waiting)
    assert [link.starts for link in first.links] == [{"web"}]
    assert all(links is first for links in others)
    assert await inventory.links(patience=0.01) is first
    assert view.looks == 1


async def test_a_look_that_failed_is_tried_again(slow: tuple[Slow, Inventory]) -> None:
    view, inventory = slow
    view.go.set()
    current, view.current = view.current, None
    for _ in range(2):
        with pytest.raises(UnavailableError, match="cannot answer the query"):
            await inventory.links()
    view.current = current
    assert (await inventory.links()).links


async def test_a_query_is_evaluated_once_until_a_change(
    slow: tuple[Slow, Inventory],
) -> None:
    view, inventory = slow
    view.go.set()
    assert await inventory.names("") is None
    for _ in range(2):
        assert await inventory.names("role=web") == frozenset({"web"})
    asked = view.questions
    assert asked
    assert await inventory.names("role=lb") == frozenset()
    assert view.questions > asked
