"""The present state of the fleet: presence, inventory, and listeners."""

import asyncio
from pathlib import Path

import pytest

from localpuppet.fleet.bus.key_value import KeyListing
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard.fleet import Fleet, FleetLimits
from localpuppet.web.dashboard.run_row import KEPT
from tests.fleet.inventory.entries import entry
from tests.web.dashboard.past import kept
from tests.web.dashboard.site import Site, status


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def rows(site: Site) -> dict[str, str]:
    return {row.node: row.state for row in kept(site.memory)}


def test_a_node_that_leaves_is_unresponsive_and_keeps_its_last_run(site: Site) -> None:
    site.tell(status("a", site.now(), last_run={"outcome": "changed"}))
    site.leave("a")
    row = site.row("a")
    assert row is not None
    assert (row.state, row.outcome) == ("unresponsive", Kind.CHANGED)


def test_nodes_missing_from_a_listing_are_unresponsive_unless_they_came_later(site: Site) -> None:
    site.tell(status("a", site.now()), status("b", site.now()))
    site.fleet.miss(set(), 1)
    site.remember()
    assert rows(site) == {"a": "unresponsive", "b": "idle"}


def test_another_store_with_lower_revisions_is_accepted(site: Site) -> None:
    site.revision = 100
    site.tell(status("a", site.now()), status("b", site.now()))
    site.revision = 1
    site.listing(status("a", site.now(), state="applying"))
    assert rows(site) == {"a": "applying", "b": "unresponsive"}


def test_a_restarted_dashboard_remembers_the_fleet(site: Site) -> None:
    site.tell(status("a", site.now(), last_run={"outcome": "failed"}))
    again = Fleet(site.memory, believe=lambda *_: {}, now=site.now)
    assert [(row.node, row.outcome) for row in kept(site.memory)] == [("a", Kind.FAILED)]
    assert again.last_updated == site.now()
    assert again.away


def test_a_repeated_status_is_no_change(site: Site) -> None:
    site.tell(status("a", site.now()))
    before = site.fleet.changes.revision
    site.clock.advance(20)
    site.tell(status("a", site.now() - 20))
    assert site.fleet.changes.revision == before
    site.tell(status("a", site.now() - 20, state="applying"))
    assert site.fleet.changes.since(before) == {"a"}


def test_an_outage_and_its_end_are_a_single_change_each(site: Site) -> None:
    site.fleet.answered()
    before = site.fleet.changes.revision
    for _ in range(3):
        site.fleet.lost("refused")
    assert (site.fleet.changes.revision, site.fleet.away) == (before + 1, "refused")
    site.fleet.answered()
    assert (site.fleet.changes.revision, site.fleet.away) == (before + 2, "")
    assert site.fleet.changes.since(before) is None


def test_strangers_do_not_fill_the_memory(tmp_path: Path) -> None:
    site = Site(tmp_path, limits=FleetLimits(nodes=2))
    site.tell(*(status(f"n{number}", site.now()) for number in range(5)))
    site.tell(status("Not A Name", site.now()))
    assert sorted(rows(site)) == ["n0", "n1"]
    site.list_(entry("n9", at=0.0))
    assert "n9" not in rows(site)


def test_untrusted_nodes_keep_no_trusted_node_out(tmp_path: Path) -> None:
    site = Site(tmp_path, limits=FleetLimits(nodes=2))
    eve = {"state": "not trusted", "reason": "unknown key"}
    site.tell(*({"node": f"a{number}", **eve} for number in range(3)))
    site.tell(status("web01", site.now()), {"node": "a9", **eve})
    assert rows(site) == {"a1": "not trusted", "web01": "idle"}
    site.tell(status("web02", site.now()), status("web03", site.now()))
    assert sorted(rows(site)) == ["web01", "web02"]


def test_a_node_that_was_never_trusted_leaves_no_row(site: Site) -> None:
    site.tell({"node": "eve", "state": "not trusted", "reason": "unknown key"})
    site.leave("eve")
    assert rows(site) == {}


def test_the_inventory_adds_roles_and_removes_forgotten_nodes(site: Site) -> None:
    site.tell(status("a", site.now()))
    site.list_(entry("a", at=0.0, roles=("web",)), entry("b", at=0.0, roles=("db",)))
    assert {row.node: row.roles for row in kept(site.memory)} == {"a": ("web",), "b": ("db",)}
    site.list_()
    assert {row.node: row.roles for row in kept(site.memory)} == {"a": ()}


def test_a_node_that_left_the_inventory_while_it_was_online_goes_with_its_agent(
    site: Site,
) -> None:
    """Also after a restart; a node that never had an entry goes if it was forgotten."""
    site.tell(status("a", site.now()), status("b", site.now()), status("c", site.now()))
    site.list_(entry("a", at=0.0), entry("b", at=0.0))
    site.list_()
    assert rows(site) == dict.fromkeys("abc", "idle")
    site.leave("a")
    assert "a" not in rows(site)
    site.fleet = Fleet(site.memory, believe=lambda *_: {}, now=site.now)
    site.fleet.take(KeyListing(entries=(), revision=9, more=False))
    site.list_()
    assert rows(site) == {"c": "unresponsive"}
    site.fleet.listed({}, all_=(), forgotten={"c"})
    site.remember()
    assert rows(site) == {}


def test_a_node_that_was_unresponsive_for_long_is_forgotten(site: Site) -> None:
    site.tell(status("a", site.now()))
    site.leave("a")
    site.clock.advance(KEPT - 1)
    site.list_()
    assert rows(site) == {"a": "unresponsive"}
    site.clock.advance(2)
    site.list_()
    assert rows(site) == {}


async def test_a_large_listing_is_processed_in_parts(tmp_path: Path) -> None:
    site = Site(tmp_path, limits=FleetLimits(together=10, pause=0.0))
    site.listing(*(status(f"n{number:02}", site.now()) for number in range(100)))
    assert len(rows(site)) == 10
    site.tell(status("n99", site.now(), state="applying"))  # newer than what waits
    site.leave("n98")
    site.fleet.miss(set(), 0)  # older than all
    turns = 0
    keeping = asyncio.create_task(site.fleet.keep_up())
    while len(rows(site)) < 99 and turns < 100:
        await asyncio.sleep(0)
        site.remember()
        turns += 1
    assert turns >= 9
    assert "n98" not in rows(site)
    assert rows(site).pop("n99") == "applying"
    site.tell(status("n98", site.now()))  # at once: nothing waits
    assert rows(site)["n98"] == "idle"
    keeping.cancel()


async def test_waiting_entries_of_a_store_are_forgotten_with_it(tmp_path: Path) -> None:
    site = Site(tmp_path, limits=FleetLimits(together=1, pause=0.0))
    site.listing(status("a", site.now()), status("old", site.now()))
    site.fleet.take(KeyListing(entries=(), revision=1))
    keeping = asyncio.create_task(site.fleet.keep_up())
    for _ in range(3):
        await asyncio.sleep(0)
    keeping.cancel()
    site.remember()
    assert rows(site) == {"a": "unresponsive"}


async def test_a_change_wakes_waiting_listeners_and_an_earlier_change_returns_at_once(
    site: Site,
) -> None:
    waiting = asyncio.create_task(site.fleet.changes.changed(site.fleet.changes.revision))
    await asyncio.sleep(0)
    assert not waiting.done()
    site.fleet.take(KeyListing(entries=(), revision=1))
    await waiting
    await site.fleet.changes.changed(0)


def test_a_reader_far_behind_loads_everything(site: Site) -> None:
    limits = FleetLimits(changes=3)
    site.fleet = fleet = Fleet(site.memory, believe=lambda *_: {}, now=site.now, limits=limits)
    fleet.answered()
    for number in range(4):
        fleet.listed({f"n{number}": ()}, all_=[f"n{other}" for other in range(4)])
        site.remember()
    assert fleet.changes.since(2) == {"n1", "n2", "n3"}
    assert fleet.changes.since(1) is None
    assert fleet.changes.since(fleet.changes.revision) == set()
    assert rows(site)["n0"] == "unresponsive"
