"""Actions on nodes: confirmed once, on a form of the dashboard, and logged."""

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest
from starlette.testclient import TestClient

from localpuppet.base.formats.names import ReleasePath, RolloutId
from localpuppet.rollout.events import RolloutBegan, RolloutContinued, RolloutPaused
from localpuppet.rollout.journal import Journals
from localpuppet.rollout.rollout_options import Delivery, RolloutOptions
from localpuppet.web.access.http_limits import MAX_ACTION_NODES, MAX_TOKENS
from localpuppet.web.access.loopback import TOKEN_LIFE, Tokens
from tests.doubles.ports import FakeClock
from tests.web.dashboard.site import EVIL, NAME, PlayedActor, Site, names, status, text

NOOP = "/nodes/do/noop?node=web01"


@pytest.fixture
def actor(site: Site) -> PlayedActor:
    actor = PlayedActor()
    site.actor = actor
    return actor


@pytest.fixture
def visitor(site: Site, actor: PlayedActor) -> Iterator[TestClient]:
    with site.visitor() as client:
        client.headers["origin"] = f"http://{NAME}.localhost:{site.port}"
        yield client


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


def test_an_action_is_sent_only_after_its_confirmation(
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


def test_a_token_is_valid_once_for_its_action(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
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
    tokens = Tokens(FakeClock().monotonic)
    given = tokens.give("alice /x")
    assert not tokens.take(given, "bob /x")
    assert tokens.take(given, "alice /x")
    first = tokens.give("a")
    for _ in range(MAX_TOKENS):
        tokens.give("a")
    assert not tokens.take(first, "a")


def test_a_refusal_is_shown_and_in_the_log(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
    actor.refuses = f"the policy denies noop {EVIL}"
    page = sent(visitor, token=token(visitor))
    assert page.startswith("409")
    assert "The action failed" in page
    assert "web01: the policy denies noop" in page
    assert "<script>alert" not in page
    assert "policy denies" in site.log.lines[0][1]


@pytest.mark.parametrize("cut", [asyncio.CancelledError, RuntimeError])
def test_an_interrupted_action_is_logged(
    site: Site,
    visitor: TestClient,
    actor: PlayedActor,
    cut: type[BaseException],
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


def test_selected_nodes_are_frozen_as_names(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
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
    assert "End my hold: a2?" in sent(visitor, "/nodes/do/enable", node="a2")
    assert len(actor.deeds) == 1
    assert "2 nodes (a1, a2): hold (for 2h: disk): 1 refused, 1 accepted" in site.log.lines[-1][1]


def test_an_action_has_a_limit_of_nodes(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
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


def test_an_action_without_a_bus_fails_as_a_whole(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
    actor.lost = "cannot reach the bus"
    page = sent(visitor, token=token(visitor))
    assert page.startswith("409")
    assert "cannot reach the bus" in page
    assert "End these" not in page


def test_a_rollout_can_be_stopped_and_resumed(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
    rollout = RolloutId.parse("20261122T110000Z-00aa")
    options = RolloutOptions(delivery=Delivery(release=ReleasePath("shop/tags/r7")))
    began = RolloutBegan(id=rollout, caller="choria=alice", groups=(), options=options, title="")
    journal = Journals(site.directory / "rollouts").begin(began, at="2026-11-22T11:00:00Z")
    url = f"/rollouts/{rollout}/do/stop"
    assert f'href="{url}"' in text(visitor, f"/rollouts/{rollout}")
    assert "No further node starts" in text(visitor, url)
    assert "does not wait for a command" in text(visitor, f"/rollouts/{rollout}/do/continue")
    assert actor.words == []
    assert sent(visitor, url, token=token(visitor, url)).startswith("200")
    back = f"/rollouts/{rollout}/do/rollback"
    assert f'href="{back}"' in text(visitor, f"/rollouts/{rollout}")
    assert "No node has taken shop/tags/r7 yet." in text(visitor, back)
    assert sent(visitor, back, token=token(visitor, back)).startswith("200")
    assert actor.words == [f"{rollout} stop", f"{rollout} rollback"]
    actor.words.pop()
    journal.close()
    assert "no process is running" in text(visitor, url)
    site.fleet.stir()  # the view is the same for a second
    resume = f"/rollouts/{rollout}/do/resume"
    assert f'href="{resume}"' in text(visitor, f"/rollouts/{rollout}")
    assert "even if this dashboard ends" in text(visitor, resume)
    assert sent(visitor, resume, token=token(visitor, url)).startswith("403")
    assert actor.words == [f"{rollout} stop"]
    assert "a process continues" in sent(visitor, resume, token=token(visitor, resume))
    assert actor.words[1:] == [f"{rollout} resume"]
    assert f"rollout {rollout}: resume: a process continues" in site.log.lines[-1][1]
    assert visitor.get(f"/rollouts/{rollout}/do/reboot").status_code == 400
    assert visitor.get("/rollouts/20261122T110000Z-00ab/do/stop").status_code == 404


def test_a_confirmation_continues_only_the_pause_that_was_shown(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
    rollout = RolloutId.parse("20261122T110000Z-00aa")
    began = RolloutBegan(
        id=rollout, caller="choria=alice", groups=(), options=RolloutOptions(), title=""
    )
    at, url = "2026-11-22T11:00:00Z", f"/rollouts/{rollout}/do/continue"
    journal = Journals(site.directory / "rollouts").begin(began, at=at)
    journal.append(RolloutPaused(reason="web01 failed"), at=at)
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
    assert actor.words == [f"{rollout} continue {first['about']}"], "the rollout refuses it"
    assert first["about"].split()[0] == "1"
    assert second["about"].split()[0] == "2"
    journal.close()


def test_without_the_option_no_actions_are_offered(site: Site) -> None:
    with site.visitor() as client:
        page = text(client, "/nodes/web01")
        assert "/do/" not in page
        assert "read-only" in page
        assert 'name="node"' not in text(client, "/nodes")
        assert client.get(NOOP).status_code == 404
        assert (
            client.post("/nodes/do/noop", headers={"origin": "http://127.0.0.1:80"}).status_code
            == 405
        )
