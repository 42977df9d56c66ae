"""Actions on nodes and rollouts: confirmed once, on a form of the dashboard, and logged."""

import asyncio
import re
from concurrent.futures import CancelledError
from contextlib import closing
from typing import Any

import pytest
from starlette.testclient import TestClient

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId
from localpuppet.fleet.inventory.presence import HoldView, NodeRow
from localpuppet.node.puppet.changes import PropertyChange
from localpuppet.rollout.events import (
    ChangesPredicted,
    Event,
    NodeRun,
    RolloutContinued,
    RolloutEnding,
    RolloutPaused,
)
from localpuppet.rollout.rollout_options import Delivery, RolloutOptions, UnapprovedChange
from localpuppet.rollout.rollout_report import RolloutReport
from localpuppet.web.access.http_limits import MAX_ACTION_NODES, MAX_TOKENS
from localpuppet.web.access.rules import TOKEN_LIFE, Secrets
from localpuppet.web.dashboard.actions import (
    Action,
    ActionOutcome,
    ActionResult,
    NodeAction,
    NodeVerdict,
    RolloutAction,
    consequences,
)
from localpuppet.web.dashboard.rollout_actions import buttons, courses, rollout_consequences
from tests.doubles.ports import FakeClock
from tests.rollout.make import rollout_over, rollout_stopped, run_ended, runs_started
from tests.web.make import EVIL, PlayedActor, Site, a_rollout, begin_rollout, names, status, text

NODE, OTHER = NodeName.parse("web01"), NodeName.parse("web02")
HELD = HoldView(owner="bob", reason="disk", until=None)


def test_a_hold_needs_a_reason_and_may_have_an_end() -> None:
    deed = NodeAction.read(Action.HOLD, (NODE,), {"message": " disk ", "length": "2h", "x": "y"})
    assert str(deed) == "hold (for 2h: disk)"
    assert deed.command == "localpuppet disable web01 -m disk --for 2h"
    endless = NodeAction.read(Action.HOLD, (NODE, OTHER), {"message": "disk 'a'"})
    assert str(endless) == "hold (without end: disk 'a')"
    assert endless.command == """localpuppet disable web01 web02 -m 'disk '"'"'a'"'"''"""
    for form in ({}, {"message": " "}, {"message": "a\nb"}, {"message": "a", "length": "soon"}):
        with pytest.raises(InvalidInputError):
            NodeAction.read(Action.HOLD, (NODE,), form)


def test_other_actions_ignore_the_fields_of_a_hold() -> None:
    deed = NodeAction.read(Action.NOOP, (NODE,), {"message": "x"})
    assert deed == NodeAction(action=Action.NOOP, nodes=(NODE,))
    assert deed.command == "localpuppet runonce --noop web01"
    with pytest.raises(InvalidInputError, match="is not one of trigger, noop, hold, enable"):
        Action.parse("reboot")


OPTIONS = RolloutOptions()
ROLLOUT = RolloutId.parse("20261122T110000Z-00aa")


CHANGE = PropertyChange(type="File", title="/etc/motd", property="content", mark="5a" * 16)
DIFFERENCE = UnapprovedChange(release="shop/tags/r7", approved="", others=(CHANGE,))
WAITS_FOR_APPROVAL = (
    runs_started(NodeRun(1, NODE)),
    ChangesPredicted(node_run=NodeRun(1, NODE), difference=DIFFERENCE),
    RolloutPaused(reason="differs", needs_approval=True),
)


def told(*events: Event, taken: bool, options: RolloutOptions = OPTIONS) -> RolloutReport:
    began = a_rollout(
        id=ROLLOUT, groups=((NODE, NodeName.parse("web02")),), options=options, title="shop"
    )
    at = "2026-11-22T11:00:00Z"
    return RolloutReport.of([(at, event) for event in (began, *events)], taken=taken)


def test_commands_are_offered_for_a_rollout_with_a_running_process() -> None:
    interrupted, running = told(taken=False), told(taken=True)
    assert courses(running) == (RolloutAction.PAUSE, RolloutAction.STOP)
    said = " ".join(rollout_consequences(RolloutAction.STOP, interrupted))
    assert "It is interrupted: no process" in said
    assert "no process" not in " ".join(rollout_consequences(RolloutAction.STOP, running))
    assert "does not wait" in " ".join(rollout_consequences(RolloutAction.CONTINUE, running))
    stops_by_itself = rollout_consequences(RolloutAction.PAUSE, running)[-1]
    assert stops_by_itself == "Without a decision within 1h it stops."
    assert [word.label for word, _ in buttons(interrupted)] == ["Resume", "Stop"]
    stopping = told(rollout_stopped(RolloutEnding.STOPPED, "stopped by bob"), taken=True)
    assert buttons(stopping) == [(RolloutAction.PAUSE, False), (RolloutAction.STOP, False)]
    paused = told(RolloutPaused(reason="canaries"), taken=True)
    assert courses(paused) == (RolloutAction.CONTINUE, RolloutAction.STOP)
    assert "accepts its failures" in rollout_consequences(RolloutAction.CONTINUE, paused)[-1]
    waiting = told(*WAITS_FOR_APPROVAL, taken=True)
    assert courses(waiting) == (RolloutAction.APPROVE, RolloutAction.STOP)
    assert rollout_consequences(RolloutAction.APPROVE, waiting)[-1] == "File[/etc/motd] content"
    requested = told(RolloutPaused(reason="paused by bob", requested_by="bob"), taken=True)
    assert rollout_consequences(RolloutAction.CONTINUE, requested)[-1] == "It is paused: by bob."
    assert "does not wait" not in " ".join(rollout_consequences(RolloutAction.CONTINUE, paused))
    with pytest.raises(
        InvalidInputError, match="is not one of pause, continue, stop, rollback, resume, approve"
    ):
        RolloutAction.parse("reboot")


def test_rollback_is_offered_if_the_rollout_delivers_a_release() -> None:
    delivery = Delivery(release=ReleasePath("shop/tags/r7"))
    gives = RolloutOptions(delivery=delivery)
    paused = (runs_started(NodeRun(1, NODE)), RolloutPaused(reason="canaries"))

    def said(*events: Event, options: RolloutOptions = gives) -> str:
        report = told(*events, taken=True, options=options)
        assert (RolloutAction.ROLLBACK in courses(report)) == (options is gives and len(events) < 3)
        return " ".join(rollout_consequences(RolloutAction.ROLLBACK, report))

    assert f"{NODE} has taken shop/tags/r7, or may have: each runs once more." in said(*paused)
    assert "No node has taken shop/tags/r7 yet." in said()
    assert "gave no node a release" in said(*paused, options=OPTIONS)
    back = rollout_stopped(RolloutEnding.ROLLED_BACK, "taken back by bob")
    assert "Its nodes roll back already." in said(*paused, back)


def test_resume_is_offered_for_a_rollout_without_a_process() -> None:
    interrupted = told(taken=False)
    assert courses(interrupted) == (RolloutAction.RESUME,)
    said = " ".join(rollout_consequences(RolloutAction.RESUME, interrupted))
    assert "even if this dashboard ends" in said
    assert f"{NODE}, {OTHER} have no result yet." in said
    assert "policies of the nodes decide" in said
    running = " ".join(rollout_consequences(RolloutAction.RESUME, told(taken=True)))
    assert "A process runs it already." in running
    turn = NodeRun(1, NODE)
    stopped = rollout_over(RolloutEnding.STOPPED, "by bob")
    halfway = told(runs_started(turn), run_ended(turn), stopped, taken=False)
    assert f"{OTHER} has no result yet." in rollout_consequences(RolloutAction.RESUME, halfway)
    over = told(rollout_over(), taken=False)
    assert (courses(over), buttons(over)) == ((), ())
    assert "It has ended" in rollout_consequences(RolloutAction.RESUME, over)[-1]


def test_the_confirmation_names_the_nodes_that_may_refuse() -> None:
    def said(action: Action, *rows: NodeRow) -> str:
        return " ".join(consequences(action, rows))

    idle, dead = NodeRow(node="idle", state="idle"), NodeRow(node="dead")
    assert "may not receive the request: dead." in said(Action.HOLD, idle, dead)
    assert "Unresponsive" not in said(Action.HOLD, idle)
    held = NodeRow(node="held", state="on hold", holds=(HELD,))
    assert "no run starts before the hold ends: held." in said(Action.NOOP, held, idle)
    assert "earlier one: held." in said(Action.HOLD, held, idle)
    assert "Not on hold, by the last status: idle." in said(Action.ENABLE, held, idle)
    assert "the new one follows it: a." in said(Action.TRIGGER, NodeRow(node="a", cause="timer"))
    strange = NodeRow(node="odd", state="not trusted")
    assert "Not trusted, replies are rejected: odd." in said(Action.HOLD, strange)


def test_the_result_of_an_action_has_counts_and_the_opposite_action() -> None:
    deed = NodeAction(action=Action.HOLD, nodes=(NODE, OTHER), message="disk")
    fine = ActionResult(node=NODE, verdict=NodeVerdict.ACCEPTED)
    refused = ActionResult(node=OTHER, verdict=NodeVerdict.REFUSED, reason="the policy denies it")
    came = ActionOutcome.of_nodes(deed, [fine, refused])
    assert came.text == "1 refused, 1 accepted"
    assert came.line == f"{came.text} (web02: the policy denies it)"
    assert [one.node for one in came.results] == [OTHER, NODE]
    assert (came.names(good=True), came.names(good=False)) == ((NODE,), (OTHER,))
    assert (came.failed, came.opposite) == (False, Action.ENABLE)
    ended = NodeAction(action=Action.ENABLE, nodes=(OTHER,))
    assert ActionOutcome.of_nodes(ended, [refused]).failed
    assert ActionOutcome.of_nodes(ended, [fine]).opposite is Action.HOLD


NOOP = "/nodes/do/noop?node=web01"


@pytest.fixture
def actor(site: Site) -> PlayedActor:
    site.actor = actor = PlayedActor()
    return actor


@pytest.fixture
def visitor(actor: PlayedActor, visitor: TestClient) -> TestClient:
    return visitor  # of a site with an actor


def token(client: TestClient, url: str = NOOP) -> str:
    return str(confirmation(client, url)["token"])


def hidden(page: str) -> dict[str, Any]:
    """Return the hidden fields of a confirmation."""
    fields = dict(re.findall(r'name="(token|about)" value="([^"]*)"', page))
    return {**fields, "node": re.findall(r'name="node" value="([^"]*)"', page)}


def confirmation(client: TestClient, url: str) -> dict[str, Any]:
    return hidden(text(client, url))


def sent(client: TestClient, url: str = NOOP, **form: Any) -> str:
    path, _, query = url.partition("?")
    answer = client.post(path, data={"node": query.removeprefix("node="), **form})
    return f"{answer.status_code} {answer.text}"


def test_an_action_needs_a_confirmation(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
    page = text(visitor, "/nodes/web01")
    for action in ("trigger", "noop", "hold", "enable"):
        assert f'href="/nodes/do/{action}?node=web01"' in page
        assert "it must allow you" in text(visitor, f"/nodes/do/{action}?node=web01")
    assert "choria=alice" in text(visitor, NOOP)
    assert actor.deeds == []
    assert sent(visitor, token=token(visitor)).startswith("200")
    assert [str(deed) for deed in actor.deeds] == ["noop"]
    assert site.log.lines == [("info", "choria=alice: web01: noop: 1 accepted")]


def test_a_token_is_valid_for_one_use(site: Site, visitor: TestClient, actor: PlayedActor) -> None:
    given = token(visitor)
    assert sent(visitor, "/nodes/do/trigger?node=web01", token=given).startswith("403")
    assert sent(visitor, "/nodes/do/noop?node=web02", token=given).startswith("403")
    assert "Noop run: web01?" in sent(visitor, message="x")
    assert sent(visitor, token="guess").startswith("403")
    assert sent(visitor, token=given).startswith("200")
    assert "confirmation was used before" in sent(visitor, token=given)
    late = token(visitor)
    site.clock.advance(TOKEN_LIFE)
    assert sent(visitor, token=late).startswith("403")
    assert len(actor.deeds) == 1


def test_a_token_of_another_session_is_not_good(site: Site, visitor: TestClient) -> None:
    tokens = Secrets(MAX_TOKENS, TOKEN_LIFE, FakeClock().monotonic)
    given = tokens.give("alice /x")
    assert not tokens.take(given, "bob /x")
    assert tokens.take(given, "alice /x")
    first = tokens.give("a")
    for _ in range(MAX_TOKENS):
        tokens.give("a")
    assert not tokens.take(first, "a")


@pytest.mark.parametrize("who", ["refuses", "lost"], ids=["the node refuses", "no bus"])
def test_a_refusal_is_shown_and_in_the_log(
    site: Site, visitor: TestClient, actor: PlayedActor, who: str
) -> None:
    setattr(actor, who, f"the policy denies noop {EVIL}")
    page = sent(visitor, token=token(visitor))
    assert page.startswith("409")
    assert "The action failed" in page
    assert "the policy denies noop" in page
    assert "End these" not in page
    assert "<script>alert" not in page
    assert "policy denies" in site.log.lines[0][1]


@pytest.mark.parametrize("cut", [asyncio.CancelledError, RuntimeError])
def test_an_interrupted_action_is_logged(
    site: Site, visitor: TestClient, actor: PlayedActor, cut: type[BaseException]
) -> None:
    given = token(visitor)
    actor.cut = cut
    with pytest.raises((cut, CancelledError)):
        sent(visitor, token=given)
    line = ("info", "choria=alice: web01: noop: the result is unknown")
    assert site.log.lines == [line]


def test_a_hold_requires_a_reason(visitor: TestClient, actor: PlayedActor) -> None:
    url = "/nodes/do/hold?node=web01"
    assert sent(visitor, url, token=token(visitor, url), message="").startswith("400")
    assert actor.deeds == []
    sent(visitor, url, token=token(visitor, url), message="disk", length="2h")
    assert (actor.deeds[0].message, actor.deeds[0].length) == ("disk", "2h")


def test_requests_that_do_not_come_from_the_forms_are_refused(
    visitor: TestClient, actor: PlayedActor
) -> None:
    large = {"token": "x" * 256 * (MAX_ACTION_NODES + 50)}
    many = {str(number): "x" for number in range(MAX_ACTION_NODES + 50)}
    assert visitor.post(NOOP, json={"token": "x"}).status_code == 400
    assert visitor.post(NOOP, data=large).status_code == 400
    assert visitor.post(NOOP, data=many).status_code == 400
    assert visitor.get("/nodes/do/reboot?node=web01").status_code == 400
    assert visitor.get("/nodes/do/noop?node=absent.example.com").status_code == 404
    assert actor.deeds == []


def test_selected_nodes_stay_the_same(site: Site, visitor: TestClient, actor: PlayedActor) -> None:
    site.tell(*(status(name, site.now()) for name in ("a1", "a2", "b1")))
    page = text(visitor, "/nodes?name=a")
    assert page.count('name="node"') == 2
    assert "all 2 that match" in page
    shown = visitor.post("/nodes/do/hold", data={"all": "1", "name": "a", "sort": "node"}).text
    assert "These 2 nodes" in shown
    assert "localpuppet disable a1 a2 -m REASON --for 2h" in shown
    given = hidden(shown)
    assert given["node"] == ["a1", "a2"]
    site.tell(status("a3", site.now()))  # matches, but was not confirmed
    for by_hand in ({"node": ["a1", "a2", "b1"]}, {"node": ["a1"]}, {"all": "1", "name": "a"}):
        changed = {**hidden(shown), **by_hand, "message": "disk"}
        assert sent(visitor, "/nodes/do/hold", **changed).startswith("403")
    assert actor.deeds == []
    site.leave("a2")
    actor.refusing = {"a1": "the policy denies it"}
    came = sent(visitor, "/nodes/do/hold", **given, message="disk", length="2h")
    assert [(str(deed), deed.nodes) for deed in actor.deeds] == [
        ("hold (for 2h: disk)", ("a1", "a2"))
    ]
    assert "1 refused, 1 accepted</p>" in came
    assert "localpuppet disable a1 a2 -m disk --for 2h" in came
    # The end of the holds takes exactly the nodes that accepted; both are confirmed first.
    assert re.search(r'do/enable"><input type="hidden" name="node" value="a2"><button>End', came)
    assert re.search(r'do/hold"><input type="hidden" name="node" value="a1"><button>Try', came)
    assert "End own hold: a2?" in sent(visitor, "/nodes/do/enable", node="a2")
    assert len(actor.deeds) == 1
    assert "2 nodes (a1, a2): hold (for 2h: disk): 1 refused, 1 accepted" in site.log.lines[-1][1]


def test_an_action_has_a_node_limit(site: Site, visitor: TestClient, actor: PlayedActor) -> None:
    many = [f"{name.partition('.')[0]}.{'x' * 60}.{'y' * 60}.{'z' * 60}" for name in names(501)]
    site.tell(*(status(name, site.now()) for name in many))
    answer = visitor.post("/nodes/do/noop", data={"all": "1", "name": "node0"})
    assert answer.status_code == 400
    assert "501 nodes are selected, an action takes at most 500" in answer.text
    assert "localpuppet rollout run" in answer.text
    rows = visitor.post("/nodes/do/noop", data={"node": many})
    assert "501 nodes are selected" in rows.text
    none = visitor.post("/nodes/do/noop", data={"q": ""})
    assert (none.status_code, "no node is selected" in none.text) == (400, True)
    unknown = visitor.post("/nodes/do/noop", data={"all": "1", "q": "role="})
    assert unknown.status_code == 400, "a query that fails selects nothing"
    shown = visitor.post("/nodes/do/noop", data={"node": many[:500]}).text
    assert "500 accepted" in sent(visitor, "/nodes/do/noop", **hidden(shown))
    assert [len(deed.nodes) for deed in actor.deeds] == [500]


def test_a_rollout_is_stopped_and_resumed(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
    rollout = ROLLOUT
    options = RolloutOptions(delivery=Delivery(release=ReleasePath("shop/tags/r7")))
    journal = begin_rollout(site, a_rollout(id=rollout, options=options))
    url = f"/rollouts/{rollout}/do/stop"
    assert f'href="{url}"' in text(visitor, f"/rollouts/{rollout}")
    assert "No further node starts" in text(visitor, url)
    assert actor.words == []
    assert sent(visitor, url, token=token(visitor, url)).startswith("200")
    back = f"/rollouts/{rollout}/do/rollback"
    assert f'href="{back}"' in text(visitor, f"/rollouts/{rollout}")
    assert sent(visitor, back, token=token(visitor, back)).startswith("200")
    assert actor.words == [f"{rollout} stop", f"{rollout} rollback"]
    actor.words.pop()
    journal.close()
    site.fleet.stir()  # the view is the same for a second
    resume = f"/rollouts/{rollout}/do/resume"
    assert f'href="{resume}"' in text(visitor, f"/rollouts/{rollout}")
    assert sent(visitor, resume, token=token(visitor, url)).startswith("403")
    assert actor.words == [f"{rollout} stop"]
    assert sent(visitor, resume, token=token(visitor, resume)).startswith("303")
    assert actor.words[1:] == [f"{rollout} resume"]
    assert f"rollout {rollout}: resume: a process continues" in site.log.lines[-1][1]
    assert visitor.get(f"/rollouts/{rollout}/do/reboot").status_code == 400
    assert visitor.get("/rollouts/20261122T110000Z-00ab/do/stop").status_code == 404


def test_a_confirmation_continues_only_the_pause_that_was_shown(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
    at, url = "2026-11-22T11:00:00Z", f"/rollouts/{ROLLOUT}/do/continue"
    journal = begin_rollout(site, a_rollout(id=ROLLOUT), RolloutPaused(reason="web01 failed"))
    first = confirmation(visitor, url)
    assert "It is paused: web01 failed." in text(visitor, url)
    journal.append(
        RolloutContinued(caller="choria=bob"), RolloutPaused(reason="web02 failed"), at=at
    )
    second = confirmation(visitor, url)
    mixed = {"token": first["token"], "about": second["about"]}
    assert sent(visitor, url, **mixed).startswith("403")
    assert actor.words == []
    assert sent(visitor, url, **first).startswith("200")
    assert actor.words == [f"{ROLLOUT} continue {first['about']}"], "the rollout refuses it"
    assert first["about"].split()[0] == "1"
    assert second["about"].split()[0] == "2"
    journal.close()


def test_an_approval_is_of_shown_changes(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
    url = f"/rollouts/{ROLLOUT}/do/approve"
    began = a_rollout(id=ROLLOUT, groups=((NODE,),))
    with closing(begin_rollout(site, began, *WAITS_FOR_APPROVAL)):
        page = text(visitor, f"/rollouts/{ROLLOUT}")
        assert f'href="{url}"' in page
        assert "/do/continue" not in page
        assert "File[/etc/motd] content" in text(visitor, url)
        assert sent(visitor, url, **confirmation(visitor, url)).startswith("200")
    assert actor.words == [f"{ROLLOUT} approve {NODE} {DIFFERENCE.digest}"]


def test_without_the_option_no_actions_are_offered(site: Site) -> None:
    with site.visitor() as client:
        page = text(client, "/nodes/web01")
        assert "read-only" in page
        assert "/do/" not in page + text(client, "/rollouts")
        assert 'name="node"' not in text(client, "/nodes")
        for path in ("/nodes/do/noop?node=web01", "/rollouts/do/start"):
            assert client.get(path).status_code == 404
            headers = {"origin": "http://127.0.0.1:80"}
            assert client.post(path.partition("?")[0], headers=headers).status_code == 405
