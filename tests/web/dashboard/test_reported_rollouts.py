"""Rollouts that nodes report: what the dashboard accepts, keeps and shows."""

import html
import re
from typing import Any

from starlette.testclient import TestClient

from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.node.runs.holds import rollout_owner
from localpuppet.web.dashboard import reported_rollouts
from localpuppet.web.dashboard.reported_rollouts import NodeRolloutReport, rollout_reports_of
from localpuppet.web.dashboard.run_row import KEPT
from tests.web.dashboard.site import Site, run_id, status, text

NOW = 1_795_000_000.0  # 2026-11-18T11:06:40Z
ID = "20261118T102000Z-0a1b"
BOB = "choria=bob"
RUN = str(run_id(NOW))


def settled(outcome: str, *, of: str = ID, run: str | None = None) -> dict[str, Any]:
    owner = rollout_owner(BOB, of)
    return {"sender": owner, "uuid": "u", "timestamp": 0, "run": run, "outcome": outcome}


def hold(until: str = "2026-11-18T11:40:00Z", *, of: str = ID) -> dict[str, Any]:
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
    assert (one.rollout, one.caller, one.outcome, one.run) == (ID, BOB, "changed", RUN)
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
        assert "No person holds a node." in overview
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
    for node, end in (("a", settled("changed", of=began)), ("b", settled("changed", of=began))):
        site.tell(status(node, site.now(), outcomes=[end]))
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
