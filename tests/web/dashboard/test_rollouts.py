"""Rollouts of this machine, of others, and those that nodes report."""

import asyncio
import html
import re
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.base.formats.times import parse_time
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.inventory.presence import NodeRow
from localpuppet.node.runs.holds import rollout_owner
from localpuppet.rollout.checkpoints import RolloutCheckpoint, Summary
from localpuppet.rollout.events import Event, NodeResult, NodeRun, RolloutEnding, RolloutResumed
from localpuppet.rollout.journal import Journals
from localpuppet.rollout.rollout_options import RolloutOptions
from localpuppet.rollout.rollout_report import RolloutReport
from localpuppet.rollout.rollout_view import GroupView, NodeRunView, RolloutView, TimeLine
from localpuppet.web.dashboard import reported_rollouts
from localpuppet.web.dashboard.list_query import ROLLOUTS, ListQuery
from localpuppet.web.dashboard.memory import DashboardStore
from localpuppet.web.dashboard.reported_rollouts import (
    NodeRolloutReport,
    RemoteRollouts,
    rollout_reports_of,
)
from localpuppet.web.dashboard.rollouts import (
    FEWEST,
    MOST_ACTIVE,
    MOST_NODES,
    KnownRollout,
    RolloutRow,
    Rollouts,
    active_rollouts,
    decisions_of,
    groups_of,
    rollouts,
)
from localpuppet.web.dashboard.run_table import KEPT
from tests.doubles.memory_store import MemoryKeyValue
from tests.rollout import make
from tests.rollout.make import ID, node, rollout_over, rollout_stopped, run_ended, runs_started
from tests.web.dashboard.test_actions import token
from tests.web.make import PlayedActor, Site, a_rollout, run_id, status, text

OWN = RolloutId.parse("20261122T110000Z-00aa")
AT = "2026-11-22T11:00:00.000000Z"


async def test_a_change_of_a_journal_is_reported(tmp_path: Path) -> None:
    journals, site = Journals(tmp_path), Site(tmp_path)
    leave, told = asyncio.Event(), asyncio.Event()
    rollouts = Rollouts(journals, site.elsewhere, site.memory)
    watching = asyncio.create_task(rollouts.watch(told.set, leave, interval=0.01))
    await told.wait()
    told.clear()
    began = a_rollout(id=OWN, caller="a")
    journal = journals.begin(began, at=AT)
    await told.wait()
    assert [row.state for row in rollouts.rows()] == ["running"]  # this process has it
    told.clear()
    journal.append(rollout_over(), at=AT)
    await told.wait()
    assert [row.state for row in rollouts.rows()] == ["done"]
    leave.set()
    await watching
    journal.close()


@pytest.mark.parametrize(
    "at", ["x", "", "2026-01-01", "9999-12-31T23:59:59-12:00", pytest.param(None, id="no database")]
)
def test_a_damaged_journal_hides_no_other_rollout(tmp_path: Path, at: str | None) -> None:
    site = Site(tmp_path)
    journals = Journals(tmp_path / "rollouts")
    other = RolloutId.parse("20261122T120000Z-00aa")
    for one in (OWN, other):
        began = a_rollout(id=one, caller="a", title="\ud800")
        journals.begin(began, at=AT).close()
    file = tmp_path / "rollouts" / f"{OWN}.sqlite"
    if at is None:
        file.write_bytes(b"no database" * 99)
    else:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("UPDATE events SET at = ?", (at,))
    with site.visitor() as visitor:
        for url in ("/rollouts", "/rollouts.csv", "/rollouts.json"):
            answer = visitor.get(url)
            assert (answer.status_code, other in answer.text) == (200, True)
            assert "damaged" in answer.text
        page = text(visitor, f"/rollouts/{OWN}", 503)
        # Only a sentence gets a capital letter: a place may be a host name.
        assert ("move it away" in page, 'class="empty"' in page) == (at is None, True)
        assert visitor.get(f"/rollouts/{other}.json").json()["title"] == "\ud800"


LATER = "2026-11-22T11:05:00.000000Z"
TURN = NodeRun(1, node(1))

FAR: tuple[Event, ...] = (runs_started(TURN), run_ended(TURN))


def head(*events: Event, epoch: int = 1, over: bool = False) -> RolloutCheckpoint:
    told = [(AT, make.FIRST), *((LATER, event) for event in events)]
    return RolloutCheckpoint(rollout=ID, epoch=epoch, events=() if over else tuple(told), over=over)


class Bus(make.Site):
    """Checkpoints of Alice's rollouts, and a dashboard that follows them; Bob has no right."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.told = asyncio.Event()
        self.elsewhere = RemoteRollouts(lambda _: self.heads, again=0.01)
        memory = DashboardStore(directory / "web" / "fleet.sqlite", now=lambda: 0.0)
        self.rollouts = Rollouts(self.here, self.elsewhere, memory)

    async def connect(self) -> KeyValue:
        if self.store.away:
            raise UnavailableError("is unreachable", where="bus")
        return self.kv

    async def heard(self) -> None:
        await self.told.wait()
        self.told.clear()

    @asynccontextmanager
    async def followed(self) -> AsyncGenerator[None, None]:
        leave = asyncio.Event()
        following = asyncio.create_task(self.elsewhere.follow(self.connect, self.told.set, leave))
        await self.heard()  # how it is at first
        yield
        leave.set()
        await following


@pytest.fixture
def bus(tmp_path: Path) -> Bus:
    return Bus(tmp_path)


async def test_a_rollout_that_runs_elsewhere_is_shown_from_its_checkpoint(bus: Bus) -> None:
    async with bus.followed():
        assert bus.rollouts.rows() == []
        written = await bus.heads.write(head(), None)
        await bus.heard()
        written = await bus.heads.write(head(*FAR), written)
        await bus.heard()
        (row,) = bus.rollouts.rows()
        assert (row.id, row.state, row.counts) == (
            ID,
            "elsewhere",
            (("done", 1), ("waiting", 1), ("not started", 1)),
        )
        assert f"last checkpoint at {LATER}" in row.reason
        assert bus.rollouts.report(ID).word == "elsewhere"
        await bus.heads.write(head(over=True), written)
        await bus.heard()
        (row,) = bus.rollouts.rows()
        assert (row.state, row.counts) == ("elsewhere", ())
        assert row.reason == "it continued on another machine, and has ended"


async def test_how_it_ended_elsewhere_is_shown_in_short(bus: Bus) -> None:
    bus.begin(runs_started(TURN))
    over = rollout_over(RolloutEnding.FAILED, "1 node failed")
    told = [(AT, make.FIRST), *((LATER, event) for event in (*FAR, RolloutResumed(epoch=2), over))]
    summary = Summary.of(RolloutReport.of(told, taken=False))
    async with bus.followed():
        ended = RolloutCheckpoint(rollout=ID, epoch=2, events=(), over=True, summary=summary)
        await bus.heads.write(ended, None)
        await bus.heard()
        (row,) = bus.rollouts.rows()
        assert (row.state, row.caller) == ("failed", "choria=alice")
        assert row.counts == (("done", 1), ("not reached", 2))
        assert row.reason == "it ended on another machine: 1 node failed"
        assert None not in (row.started_at, row.finished_at)
        assert bus.rollouts.shown(ID) == KnownRollout(row=row)


async def test_a_rollout_that_was_stopped_elsewhere_can_be_resumed(bus: Bus) -> None:
    stopped = head(*FAR, rollout_over(RolloutEnding.STOPPED, "stopped by bob"))
    await bus.heads.write(stopped, None)
    async with bus.followed():
        (row,) = bus.rollouts.rows()
        assert row.reason == f"it was stopped on another machine at {LATER}, and can be resumed"


async def test_of_a_journal_and_a_checkpoint_the_newer_epoch_counts(bus: Bus) -> None:
    bus.begin(runs_started(TURN))
    written = await bus.heads.write(head(*FAR), None)
    async with bus.followed():
        assert [row.state for row in bus.rollouts.rows()] == ["interrupted"]
        assert bus.rollouts.report(ID).word == "interrupted"
        await bus.heads.write(head(*FAR, RolloutResumed(epoch=2), epoch=2), written)
        await bus.heard()
        (row,) = bus.rollouts.rows()
        assert (row.state, row.counts) == (
            "elsewhere",
            (("done", 1), ("waiting", 1), ("not started", 1)),
        )
        assert bus.rollouts.report(ID).counts() == {"done": 1, "waiting": 1, "not started": 1}


async def test_a_rollout_that_ended_elsewhere_shows_the_progress_known_here(bus: Bus) -> None:
    bus.begin(runs_started(TURN))
    await bus.heads.write(head(epoch=2, over=True), None)
    async with bus.followed():
        (row,) = bus.rollouts.rows()
        assert (row.state, row.counts) == (
            "elsewhere",
            (("running", 1), ("waiting", 1), ("not started", 1)),
        )
        assert "and has ended" in row.reason
        assert bus.rollouts.report(ID).word == "elsewhere"


async def test_checkpoints_of_others_are_ignored_and_outages_change_nothing(bus: Bus) -> None:
    async with bus.followed():
        written = await bus.heads_of(bus.bob).write(head(), None)
        await bus.heard()
        assert bus.rollouts.rows() == []
        written = await bus.heads.write(head(), written)
        await bus.heard()
        bus.store.away = True
        await asyncio.sleep(0.05)
        assert [row.state for row in bus.rollouts.rows()] == ["elsewhere"]
        bus.store.away = False
        key = bus.heads.key(ID)
        await MemoryKeyValue(bus.store).remove_if_revision(key, written)
        while bus.rollouts.rows():
            await bus.heard()


async def test_an_impossible_checkpoint_hides_no_rollout(bus: Bus) -> None:
    bus.begin()
    lie = head(runs_started(NodeRun(1, node(9))), RolloutResumed(epoch=2), epoch=2)
    await bus.heads.write(lie, None)
    async with bus.followed():
        assert [row.state for row in bus.rollouts.rows()] == ["interrupted"]
        assert bus.rollouts.report(ID).word == "interrupted"


async def test_no_actions_are_offered_for_a_rollout_elsewhere(tmp_path: Path) -> None:
    site, bus = Site(tmp_path / "site"), Bus(tmp_path)
    actor = PlayedActor()
    site.elsewhere, site.actor = bus.elsewhere, actor
    await bus.heads.write(head(*FAR), None)
    async with bus.followed():
        pass
    over = rollout_over()
    ended = Summary.of(RolloutReport.of([(AT, make.FIRST), (LATER, over)], taken=False))
    with site.visitor() as visitor:
        page = visitor.get(f"/rollouts/{ID}").text
        assert "elsewhere" in page
        assert "/do/" not in page
        resume = f"/rollouts/{ID}/do/resume"
        given = token(visitor, resume)
        assert "localpuppet rollout resume" in visitor.get(resume).text
        answer = visitor.post(resume, data={"token": given})
        assert (answer.status_code, actor.words) == (409, [])
        assert "is continued on another machine" in answer.text
        head_ = RolloutCheckpoint(rollout=ID, epoch=2, events=(), over=True, summary=ended)
        bus.elsewhere.heads = {ID: head_}
        site.fleet.stir()
        page = visitor.get(f"/rollouts/{ID}").text
        assert "This is its last checkpoint on the bus" in page
        assert ("/do/" in page, "json" in page) == (False, False)
        assert visitor.get(f"/rollouts/{ID}.json").status_code == 404


NOW = 1_795_000_000.0  # 2026-11-18T11:06:40Z
THEIRS = "20261118T102000Z-0a1b"
BOB = "choria=bob"
RUN = str(run_id(NOW))


def settled(outcome: str, *, of: str = THEIRS, run: str | None = None) -> dict[str, Any]:
    owner = rollout_owner(BOB, of)
    return {"sender": owner, "uuid": "u", "timestamp": 0, "run": run, "outcome": outcome}


def hold(until: str = "2026-11-18T11:40:00Z", *, of: str = THEIRS) -> dict[str, Any]:
    return {"owner": rollout_owner(BOB, of), "reason": "rollout", "since": "", "until": until}


def taken(*ends: object, holds: tuple[dict[str, Any], ...] = ()) -> tuple[NodeRolloutReport, ...]:
    told: dict[str, Any] = {
        "node": "web01",
        "state": "idle",
        "holds": list(holds),
        "outcomes": list(ends),
    }
    return rollout_reports_of(told, NodeRow.of_presence("web01", told, now=NOW).holds, now=NOW)


def test_a_status_has_the_rollout_of_a_hold_and_the_newest_result() -> None:
    told = taken(settled("failed"), settled("changed", run=RUN), holds=(hold(),))
    (one,) = told
    assert (one.rollout, one.caller, one.outcome, one.run) == (THEIRS, BOB, "changed", RUN)
    assert one.until == NOW + 2000
    assert taken(holds=(hold(),))[0].outcome == ""


def test_other_outcomes_and_impossible_ids_are_ignored() -> None:
    trigger = {**settled("changed"), "sender": "choria=bob"}
    odd = [
        settled("changed", of=other)
        for other in ("20281118T102000Z-0a1b", "20160101T000000Z-0a1b", "20261399T000000Z-0a1b")
    ]
    assert taken(trigger, *odd, "x", {"sender": 1}, holds=({"owner": "alice"},)) == ()
    lie = settled("<script>", run="../../etc")
    assert [(one.outcome, one.run) for one in taken(lie)] == [("other", "")]


def test_a_rollout_of_another_person_is_shown_from_the_reports_of_its_nodes(tmp_path: Any) -> None:
    site = Site(tmp_path)
    began = site.clock.now().strftime("%Y%m%dT%H%M%SZ-0a1b")
    now, later = site.now(), "2999-01-01T00:00:00Z"
    held = {"holds": [hold(later, of=began)], "state": "on hold"}
    ends = {"outcomes": [settled("failed", of=began)]}
    site.tell(
        status("web01", now, **held, outcomes=[settled("changed", of=began)]),
        status("web02", now, **held),
        status("web03", now, **ends),
    )
    with site.visitor() as visitor:
        page = text(visitor, "/rollouts")
        assert "reported by nodes" in page
        assert f'<a href="/rollouts/{began}">{BOB}/rollout/' in text(visitor, "/nodes/web02")
        assert "it holds 2 nodes" in page
        overview = text(visitor, "/")
        assert "2 nodes on hold for it" in overview  # folded, and not in the list of holds
        assert 'id="on-hold"' not in overview
        for place in ("/", "/nodes/web02", "/rollouts", f"/rollouts/{began}", "/nodes"):
            for link in re.findall(r'href="(/[^"]*)"', text(visitor, place)):
                code = visitor.get(html.unescape(link), follow_redirects=False).status_code
                assert code in (200, 303, 404), (place, link)
        for count in ("1 done", "1 failed", "1 waiting"):
            assert count in page
        assert f"{began},holding" in visitor.get("/rollouts.csv").text
        page = text(visitor, f"/rollouts/{began}")
        assert "in its journal only" in page
        assert page.index("web02") < page.index("web03")  # what is held comes first
        assert "/do/" not in page
        assert visitor.get(f"/rollouts/{began}.json").status_code == 404
        site.tell(status("web01", now + 1), status("web02", now + 1))
        assert _state(visitor, began) == "released"


def _state(visitor: TestClient, rollout: str) -> str:
    (one,) = visitor.get("/rollouts.json").json()["rollouts"]
    assert one["id"] == rollout
    return str(one["state"])


def test_a_lying_node_displaces_only_its_own_reports(tmp_path: Any) -> None:
    site = Site(tmp_path)
    began = site.clock.now().strftime("%Y%m%dT%H%M%SZ-")
    site.tell(status("good", site.now(), outcomes=[settled("changed", of=f"{began}ffff")]))
    for beginning in range(0, reported_rollouts.MOST_OF_ONE + 60, 32):
        lies = [settled("changed", of=f"{began}{beginning + one:04x}") for one in range(32)]
        site.tell(status("eve", site.now(), outcomes=lies))
    found = site.memory.reported_rollouts()
    assert len(found) == reported_rollouts.MOST_OF_ONE + 1
    assert found[0].rollout == f"{began}ffff"


def test_of_two_named_callers_the_one_with_more_nodes_counts(tmp_path: Any) -> None:
    site = Site(tmp_path)
    began = site.clock.now().strftime("%Y%m%dT%H%M%SZ-0a1b")
    lie = {**settled("failed"), "sender": rollout_owner("choria=mallory", began)}
    for name in "ab":
        site.tell(status(name, site.now(), outcomes=[settled("changed", of=began)]))
    site.tell(status("eve", site.now(), outcomes=[lie]))
    (one,) = site.memory.reported_rollouts()
    assert (one.caller, one.ends) == (BOB, {"changed": 2})
    canary = f"{began[:-4]}ffff"
    site.tell(status("a", site.now(), outcomes=[settled("changed", of=canary)]))
    site.clock.advance(1)
    lie["sender"] = rollout_owner("choria=mallory", canary)
    site.tell(status("eve", site.now(), outcomes=[lie]))  # as many, and later
    assert site.memory.reported_rollouts()[0].caller == BOB


def test_old_reports_are_removed(tmp_path: Any) -> None:
    site = Site(tmp_path)
    began = site.clock.now().strftime("%Y%m%dT%H%M%SZ-0a1b")
    site.tell(status("a", site.now(), outcomes=[settled("changed", of=began)]))
    first = site.memory.reported_rollouts()[0].first
    site.clock.advance(86400.0 * 50)
    site.tell(status("a", site.now(), outcomes=[settled("changed", of=began)]))
    assert (site.memory.reported_rollouts()[0].first, site.memory.reported_rollouts()[0].last) == (
        first,
        first,
    )
    site.clock.advance(86400.0 * 50)
    site.memory.prune()
    assert site.memory.reported_rollouts() == []


def test_a_node_that_was_released_while_no_dashboard_ran_is_not_on_hold(tmp_path: Any) -> None:
    def held_by_one(node: str) -> dict[str, Any]:
        return status(node, site.now(), holds=[hold("2999-01-01T00:00:00Z", of=began)])

    site = Site(tmp_path)
    began = site.clock.now().strftime("%Y%m%dT%H%M%SZ-0a1b")
    site.tell(held_by_one("a"), held_by_one("b"))
    assert site.memory.reported_rollouts()[0].held == 2
    site = Site(tmp_path)  # another process
    site.tell(status("a", site.now()), held_by_one("b"))
    assert site.memory.reported_rollouts()[0].held == 1
    site.leave("b")
    site.clock.advance(KEPT + 1)
    site.fleet.listed({}, all_=())  # what no message confirmed for that time is forgotten
    site.remember()
    assert site.memory.reported_rollouts()[0].held == 0


SOON = "2026-11-22T11:00:30.000000Z"


def numbered(number: int) -> NodeName:
    return NodeName.parse(f"n{number:04}")


def report(*events: Event, groups: int = 2, each: int = 3) -> RolloutReport:
    began = a_rollout(
        id=OWN,
        groups=tuple(
            tuple(numbered(group * each + number) for number in range(each))
            for group in range(groups)
        ),
        options=RolloutOptions(checks=("http://%{node}/",)),
        title="shop",
    )
    return RolloutReport.of([(AT, began), *((SOON, event) for event in events)], taken=True)


def shown(found: RolloutReport) -> list[tuple[GroupView, list[tuple[NodeRunView, str]]]]:
    view = RolloutView.of(found, parse_time(SOON))
    return groups_of(view, TimeLine.of(view, parse_time(SOON)))


def test_a_page_names_a_limited_number_of_nodes_and_a_failed_one_in_any_case() -> None:
    last = NodeRun(1, numbered(4999))
    failed = (runs_started(last), run_ended(last, NodeResult.FAILED))
    ((only, runs),) = shown(report(*failed, groups=1, each=5000))
    assert (len(runs), len(only.runs), runs[-1][0].node) == (MOST_NODES, 5000, "n4999")
    assert [run.node for run, _ in runs] == sorted(run.node for run, _ in runs)
    many = shown(report(groups=100, each=50))
    assert {len(runs) for _, runs in many} == {FEWEST}


def test_rollouts_are_filtered_and_sorted() -> None:
    row = RolloutRow.of(report().summary())
    assert (row.nodes, row.state, row.counts) == (6, "running", (("not started", 6),))
    old = RolloutRow(id="20261121T110000Z-00aa", state="done", started_at=1.0, title="db")

    def found(said: dict[str, str]) -> list[str]:
        return [one.id for one in rollouts([old, row], ListQuery.parse(said, ROLLOUTS))]

    assert found({}) == [row.id, old.id]
    assert found({"sort": "title"}) == [old.id, row.id]
    assert found({"name": "ALICE"}) == [row.id]


def test_rollouts_in_progress_come_with_those_that_only_hold_nodes() -> None:
    """A node may name any rollout as the owner of its hold: known ones come first."""
    running, old = (
        RolloutRow.of(report().summary()),
        RolloutRow(id="20261121T110000Z-00aa", state="done"),
    )
    unknown = "20991121T110000Z-00bb"
    assert active_rollouts([old, running], {}, now=NOW) == [running]
    found = active_rollouts([old, running], {old.id: ["a"], unknown: ["b"]}, now=NOW)
    assert [(row.id, row.state) for row in found] == [
        (running.id, "running"),
        (old.id, "done"),
        (unknown, "holding"),
    ]
    forged = {f"20991121T110000Z-{number:04x}": ["c"] for number in range(2 * MOST_ACTIVE)}
    many = active_rollouts([running], forged, now=NOW)
    assert (many[0], len(many)) == (running, MOST_ACTIVE)


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({}, True),
        ({"state": "failed", "counts": (("failed", 1), ("not reached", 1))}, True),
        ({"state": "interrupted", "counts": (("running", 1),), "finished_at": None}, True),
        ({"counts": (("rolled back", 1), ("not reached", 1))}, False),
        ({"state": "not ready", "counts": (("not reached", 2),)}, True),
        ({"state": "done", "counts": (("done", 2),)}, False),
        ({"noop": True}, False),
        ({"finished_at": NOW - 8 * 86400}, False),
    ],
)
def test_a_rollout_that_ended_halfway_is_active_until_the_next_of_its_nodes(
    more: dict[str, Any], shown: bool
) -> None:
    halfway = {"state": "stopped", "counts": (("done", 1), ("not reached", 1)), "title": "shop"}
    times = {"started_at": NOW - 90, "finished_at": NOW - 60}
    row = RolloutRow(id="20261121T110000Z-00aa", **{**halfway, **times, **more})
    assert active_rollouts([row], {}, now=NOW) == [row] * shown
    later = RolloutRow(id="20261122T110000Z-00aa", state="done", title="shop")
    assert active_rollouts([row, later], {}, now=NOW) == []
    trial = replace(later, noop=True)
    assert active_rollouts([row, trial], {}, now=NOW) == [row] * shown


def test_a_decision_has_its_time() -> None:
    ((at, what),) = decisions_of(report(rollout_stopped(RolloutEnding.STOPPED, "alice says so")))
    assert at == parse_time(SOON).timestamp()
    assert what == "no further nodes start: alice says so"
