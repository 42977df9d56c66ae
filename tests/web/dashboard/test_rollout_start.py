"""A rollout that an operator starts: confirmed once, for exactly the nodes and options shown."""

import html
import re
import shlex
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.rollout.cli.rollout_run import run_command
from localpuppet.web.dashboard.rollout_actions import RolloutStart
from tests.web.dashboard.site import NAME, PlayedActor, Site, staged, status, text

NODES = (NodeName.parse("db01"), NodeName.parse("web01"))
FORM = {"release": "shop/tags/r7", "canary": "1", "window": "2", "max_failures": "10%"}
PLAN = "/rollouts/do/start?role=web&release=shop/tags/r7&canary=1&window=&max_failures="


def test_the_command_line_accepts_the_shown_command() -> None:
    start = RolloutStart.read({**FORM, "query": "role=web"}, NODES)
    words = shlex.split(start.command)
    assert words[:3] == ["localpuppet", "rollout", "run"]
    given = run_command.make_context("run", words[3:]).params
    assert given["nodes"] == ("db01", "web01")
    assert [given[name] for name in FORM] == ["shop/tags/r7", 1, 2, "10%"]
    other = RolloutStart.read({**FORM, "canary": "2"}, NODES)
    assert len({start.digest, other.digest, RolloutStart.read(FORM, NODES[:1]).digest}) == 3


@pytest.mark.parametrize(
    "field", [{"canary": "25%"}, {"window": "many"}, {"release": "--noop"}, {"max_failures": "-1"}]
)
def test_an_invalid_option_is_refused_before_the_plan_is_made(
    field: dict[str, str],
) -> None:
    with pytest.raises(InvalidInputError):
        RolloutStart.read({**FORM, **field}, NODES)


@pytest.fixture
def actor(site: Site) -> PlayedActor:
    site.actor = actor = PlayedActor()
    actor.groups = [[NODES[0]], [NODES[1]]]
    return actor


@pytest.fixture
def visitor(site: Site, actor: PlayedActor) -> Iterator[TestClient]:
    with site.visitor() as client:
        client.headers["origin"] = f"http://{NAME}.localhost:{site.port}"
        yield client


def hidden(page: str) -> dict[str, str | list[str]]:
    fields: dict[str, str | list[str]] = {}
    form = page.rpartition("<form")[2]  # the one before it changes options
    for name, value in re.findall(r'type="hidden" name="([a-z_]+)" value="([^"]*)"', form):
        fields[name] = [*fields.get(name, []), value] if name == "node" else value
    return fields


def test_a_rollout_starts_with_the_names_and_options_that_were_confirmed(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
    assert 'href="/rollouts/do/start"' in text(visitor, "/rollouts")
    assert 'name="query"' in text(visitor, "/rollouts/do/start")
    page = text(visitor, PLAN)
    assert "Group 1: db01." in page
    assert "Group 2: web01." in page
    assert "2 nodes will take shop/tags/r7 and run it, with canary 1." in page
    assert actor.words == ["plan {'role': 'web'}"]
    form = hidden(page)
    other = {**form, "node": ["db01", "db02"]}
    assert visitor.post("/rollouts/do/start", data=other).status_code == 403
    form = hidden(text(visitor, PLAN))
    assert visitor.post("/rollouts/do/start", data={**form, "canary": "2"}).status_code == 403
    form = hidden(text(visitor, PLAN))
    actor.words.clear()
    answer = visitor.post("/rollouts/do/start", data=form)
    assert (answer.status_code, "A process has started rollout" in answer.text) == (200, True)
    command = "localpuppet rollout run db01 web01 --release=shop/tags/r7 --canary=1"
    assert actor.words == [command]
    assert "2 nodes (db01, web01): start a rollout (release shop/tags/r7" in site.log.lines[-1][1]
    assert visitor.post("/rollouts/do/start", data=form).status_code == 403
    assert actor.words == [command]


def test_options_are_changed_for_the_same_nodes(visitor: TestClient, actor: PlayedActor) -> None:
    chosen = {"node": ["db01", "web01"], "canary": "2", "release": "shop/tags/r8"}
    page = visitor.post("/rollouts/do/start", data=chosen).text
    assert "Group 2: web01." in page
    assert "2 nodes will take shop/tags/r8 and run it, with canary 2." in page
    assert actor.words == ["plan {'nodes': 'db01,web01'}"]
    answer = visitor.post("/rollouts/do/start", data=hidden(page))
    assert "A process has started rollout" in answer.text
    assert "--canary=2" in actor.words[-1]


def test_a_plan_and_an_old_release_start_a_rollout(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
    now = site.now()
    site.tell(status("x1", now - 7200, last_run={"release": "shop/tags/r6"}))
    site.tell(status("x2", now - 7200, last_run={"release": "shop/tags/r6"}))
    site.tell(status("x3", now - 60, last_run={"release": "shop/tags/r7"}))
    site.leave("x2")
    (link,) = re.findall(r'href="(/rollouts/do/start\?[^"]*older=[^"]*)"', text(visitor, "/"))
    plan = text(visitor, html.unescape(link))
    assert "take shop/tags/r7 and run it, with canary 1" in plan
    assert "Left out, without a running agent: x2." in plan
    assert re.search(r'class="path"><a href="/rollouts">Rollouts</a>', plan)
    assert actor.words == ["plan {'nodes': 'x1'}"]
    site.leave("x1")
    assert "no node with a running agent" in text(visitor, html.unescape(link), 400)
    actor.words.clear()
    (link,) = re.findall(r'href="(/rollouts/do/start\?[^"]*)"', text(visitor, "/plan?q=role%3Dweb"))
    text(visitor, html.unescape(link))
    (link,) = re.findall(r'href="(/rollouts/do/start\?[^"]*)"', text(visitor, "/plan"))
    text(visitor, html.unescape(link))
    assert actor.words == ["plan {'query': 'role=web'}", "plan {}"]


def test_a_release_without_nodes_behind_is_not_rolled_out_to_them(
    site: Site, visitor: TestClient
) -> None:
    tags = [f"shop/tags/r{number}" for number in (9, 10, 11)]
    site.staged = [staged(tag, "a" * 64) for tag in (*tags, "web/tags/r99")]
    site.tell(status("x1", site.now() - 60, last_run={"release": "shop/tags/r9"}))
    links = re.findall(r'href="/rollouts/do/start\?[^"]*older=([^"]*)"', text(visitor, "/releases"))
    assert sorted(links) == ["shop/tags/r10", "shop/tags/r11", "web/tags/r99"]


def test_a_selection_without_nodes_or_with_an_invalid_option_starts_nothing(
    visitor: TestClient, actor: PlayedActor
) -> None:
    actor.groups = []
    assert "selects 0 nodes" in text(visitor, PLAN, 400)
    assert "is not a number of nodes" in text(visitor, "/rollouts/do/start?role=web&window=x", 400)


def test_a_read_only_dashboard_starts_no_rollout(site: Site) -> None:
    with site.visitor() as visitor:
        assert "/rollouts/do/start" not in text(visitor, "/rollouts")
        assert visitor.get("/rollouts/do/start").status_code in (400, 404)
        assert visitor.post("/rollouts/do/start").status_code in (403, 404, 405)
