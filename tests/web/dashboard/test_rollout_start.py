"""A rollout is started from one form, confirmed with its nodes, and shown as soon as it begins."""

import html
import re
import shlex
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId
from localpuppet.node.releases.comparison import NameDifference
from localpuppet.rollout.cli.rollout_run import run_command
from localpuppet.rollout.events import RolloutEnding
from localpuppet.rollout.rollout_options import Delivery, RolloutOptions
from localpuppet.web.dashboard.rollout_actions import RolloutStart
from tests.rigs.waiting import wait_until
from tests.rollout.make import rollout_over
from tests.web.make import PlayedActor, Site, a_rollout, begin_rollout, staged, status, text

STARTED = RolloutId.parse("20261122T110000Z-00aa")
NODES = (NodeName.parse("db01"), NodeName.parse("web01"))
FORM = {
    "release": "shop/tags/r7",
    "canary": "1",
    "window": "2",
    "max_failures": "10%",
    "on_failure": "rollback",
}
PLAN = "/rollouts/do/start?role=web&release=shop/tags/r7&canary=1&window=&max_failures="


@pytest.fixture
def actor(site: Site) -> PlayedActor:
    site.actor = actor = PlayedActor()
    actor.groups = [[NODES[0]], [NODES[1]]]
    return actor


@pytest.fixture
def visitor(actor: PlayedActor, visitor: TestClient) -> TestClient:
    return visitor  # of a site with an actor


def test_the_command_line_accepts_the_shown_command() -> None:
    start = RolloutStart.read({**FORM, "query": "role=web"}, NODES)
    words = shlex.split(start.command)
    assert words[:3] == ["localpuppet", "rollout", "run"]
    given = run_command.make_context("run", words[3:]).params
    assert given["nodes"] == ("db01", "web01")
    assert [given[name] for name in FORM] == ["shop/tags/r7", 1, 2, "10%", "rollback"]
    other = RolloutStart.read({**FORM, "canary": "2"}, NODES)
    assert len({start.digest, other.digest, RolloutStart.read(FORM, NODES[:1]).digest}) == 3
    careful = {"batch": "25%", "pause": "canaries groups", "noop": "1", "skip_unready": "1"}
    start = RolloutStart.read({**careful, "on_failure": "rollback", "canary": "0"}, NODES)
    given = run_command.make_context("run", shlex.split(start.command)[3:]).params
    assert [given[name] for name in careful] == ["25%", ("canaries", "groups"), True, True]
    assert (given["canary"], given["on_failure"]) == (None, None), "nothing can be rolled back"


@pytest.mark.parametrize(
    "field",
    [
        *({"canary": "25%"}, {"window": "many"}, {"release": "--noop"}, {"max_failures": "-1"}),
        *({"noop": "1"}, {"batch": "2"}, {"on_failure": "hope"}, {"pause": "canaries lunch"}),
    ],
)
def test_an_invalid_option_is_refused_before_the_plan_is_made(field: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        RolloutStart.read({**FORM, **field}, NODES)


def confirmed(page: str) -> dict[str, str | list[str]]:
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
    assert "2 nodes will take shop/tags/r7 and run it." in page
    assert "<li>1 canary in each group.</li>" in page
    assert actor.words == ["plan {'role': 'web'}"]
    form = confirmed(page)
    other = {**form, "node": ["db01", "db02"]}
    assert visitor.post("/rollouts/do/start", data=other).status_code == 403
    form = confirmed(text(visitor, PLAN))
    assert visitor.post("/rollouts/do/start", data={**form, "canary": "2"}).status_code == 403
    form = confirmed(text(visitor, PLAN))
    actor.words.clear()
    answer = visitor.post("/rollouts/do/start", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/rollouts/{STARTED}")
    command = "localpuppet rollout run db01 web01 --release=shop/tags/r7 --canary=1"
    assert actor.words == [command]
    assert "2 nodes (db01, web01): start a rollout (release shop/tags/r7" in site.log.lines[-1][1]
    assert visitor.post("/rollouts/do/start", data=form).status_code == 403
    assert actor.words == [command]


def test_options_are_changed_for_the_same_nodes(visitor: TestClient, actor: PlayedActor) -> None:
    chosen = {"node": ["db01", "web01"], "canary": "2", "release": "shop/tags/r8"}
    page = visitor.post("/rollouts/do/start", data=chosen).text
    assert "Group 2: web01." in page
    assert "2 nodes will take shop/tags/r8 and run it." in page
    assert "<li>2 canaries in each group.</li>" in page
    assert actor.words == ["plan {'nodes': 'db01,web01'}"]
    edited = visitor.post("/rollouts/do/start", data={**confirmed(page), "edit": "1"}).text
    assert re.search('name="release" id="release-shop/tags/r8"|id="other"[^>]*tags/r8', edited)
    assert re.search('name="canary"[^>]* value="2"', edited)
    assert confirmed(edited)["node"] == ["db01", "web01"]
    answer = visitor.post("/rollouts/do/start", data=confirmed(page))
    assert answer.headers["location"] == f"/rollouts/{STARTED}"
    assert "--canary=2" in actor.words[-1]


def test_a_plan_or_old_release_starts_one(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
    now = site.now()
    site.tell(status("x1", now - 7200, last_run={"release": "shop/tags/r6"}))
    site.tell(status("x2", now - 7200, last_run={"release": "shop/tags/r6"}))
    site.tell(status("x3", now - 60, last_run={"release": "shop/tags/r7"}))
    site.leave("x2")
    (link,) = re.findall(r'href="(/rollouts/do/start\?[^"]*older=[^"]*)"', text(visitor, "/"))
    plan = text(visitor, html.unescape(link))
    assert "take shop/tags/r7 and run it." in plan
    assert "Rolls the release back after too many failures" in html.unescape(plan) or (
        "rolls the release back after too many failures" in plan
    )
    assert "Left out, without a running agent: x2." in plan
    assert re.search(r'class="path"><a href="/rollouts">Rollouts</a>', plan)
    assert actor.words == ["plan {'nodes': 'x1'}"]
    site.leave("x1")
    assert "no node with a running agent" in text(visitor, html.unescape(link), 400)
    actor.words.clear()
    for view, selection in {"/plan?q=role%3Dweb": "{'query': 'role=web'}", "/plan": "{}"}.items():
        (link,) = re.findall(r'href="(/rollouts/do/start\?[^"]*)"', text(visitor, view))
        form = text(visitor, html.unescape(link))
        fields = dict(re.findall(r'<input[^>]* name="(query|all)"[^>]* value="([^"]*)"', form))
        assert "Group 1" in text(visitor, f"/rollouts/do/start?{urlencode(fields)}&release=")
        assert actor.words[-1] == f"plan {selection}"


def test_a_release_without_nodes_behind_has_no_link(site: Site, visitor: TestClient) -> None:
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
    page = text(visitor, f"{PLAN}x&pause=groups&query=os.family%3DDebian", 400)
    assert "is not a number of nodes" in page
    for typed in ('value="os.family=Debian"', 'value="x"', 'value="groups" selected'):
        assert typed in page, "the form keeps what was typed"
    for nothing in ("?release=&query=", "?other=&query=role%3Dweb"):
        assert "No rollout was started" in text(visitor, f"/rollouts/do/start{nothing}", 400)


def test_a_refused_start_leads_back_to_the_form(visitor: TestClient, actor: PlayedActor) -> None:
    form = confirmed(text(visitor, f"{PLAN}&pause=canaries"))
    actor.refuses = "no node has a key of choria=alice"
    answer = visitor.post("/rollouts/do/start", data=form)
    assert answer.status_code == 409
    assert "No rollout was started.</strong> no node has a key" in answer.text
    assert 'value="canaries" selected' in answer.text
    assert confirmed(answer.text)["node"] == ["db01", "web01"]


@pytest.mark.parametrize("refuses", ["", "the inventory is unreachable"])
def test_a_start_that_takes_long_is_followed_wherever_its_user_goes(
    site: Site, actor: PlayedActor, refuses: str
) -> None:
    site.begin_patience = 0.0
    actor.begins.clear()
    with site.visitor() as visitor:
        form = confirmed(text(visitor, PLAN))
        answer = visitor.post("/rollouts/do/start", data=form)
        assert answer.status_code == 303, answer.text
        waits = answer.headers["location"]
        assert "has not begun yet" in text(visitor, waits)
        actor.refuses = refuses
        assert visitor.portal is not None
        visitor.portal.call(actor.begins.set)
        if not refuses:
            wait_until(lambda: visitor.get(waits).status_code == 303, str)
            assert visitor.get(waits).headers["location"] == f"/rollouts/{STARTED}"
            assert "did not start" not in text(visitor, "/")
            return
        problem = f"The rollout of 2 nodes did not start: {refuses}"
        wait_until(lambda: problem in visitor.get("/").text, str)
        for view in ("/nodes", "/bus"):
            assert problem in text(visitor, view)
        assert f'href="{waits}"' in text(visitor, "/")
        assert refuses in text(visitor, "/audit")
        assert f"No rollout was started.</strong> {refuses}" in text(visitor, waits, 409)
        assert problem not in text(visitor, "/"), "it was seen"


def test_the_newest_release_is_chosen_unless_it_has_just_failed(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
    site.staged = [staged(f"shop/tags/r{number}", "a" * 64) for number in (7, 8)]
    page = text(visitor, "/rollouts/do/start")
    chosen = re.findall(r'name="release"[^>]*value="([^"]*)"( checked)?', page)
    assert chosen[:2] == [("shop/tags/r8", " checked"), ("shop/tags/r7", "")]
    assert "Carol Doe, <time" in page
    assert "&lt;b&gt;r8&lt;/b&gt;: ntp is faster" in page
    options = RolloutOptions(delivery=Delivery(release=ReleasePath.parse("shop/tags/r8")))
    over = rollout_over(RolloutEnding.ROLLED_BACK)
    begin_rollout(site, a_rollout(id=STARTED, options=options), over).close()
    site.tell(status("x1", site.now(), last_run={"release": "shop/tags/r8", "outcome": "failed"}))
    page = text(visitor, "/rollouts/do/start")
    assert "its rollout was rolled back" in page
    assert "failed on 1" in page
    assert not re.search('name="release"[^>]* checked', page), "no release is chosen by itself"
    assert "Choose a release" in text(visitor, "/rollouts/do/start?query=role%3Dweb&other=", 400)


def test_the_confirmation_has_what_differs_from_the_releases_of_these_nodes(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
    site.staged = [staged(f"shop/tags/r{number}", "a" * 64) for number in (6, 7)]
    changed = {f"shop/manifests/m{number:02}.pp": "2 lines" for number in range(25)}
    site.differences = {
        "files": NameDifference(added=("shop/new.pp",), removed=(), changed=changed)
    }
    for name, release in (("db01", "shop/tags/r6"), ("web01", "shop/tags/r5")):
        site.tell(status(name, site.now(), last_run={"release": release}))
    page = re.sub("<wbr>", "", text(visitor, PLAN))
    assert "What changes on 1 node that has shop/tags/r6<" in page
    assert "26 dependencies and files of the release differ" in page
    assert page.count('<span class="word changed">') + page.count('"word added">') == 20
    assert "and 6 more" in page
    assert "from=shop/tags/r6&amp;to=shop/tags/r7" in page
    assert '<p class="problem">shop/tags/r5: is not staged on this machine' in page
    site.differences = {"files": NameDifference(added=("shop/new.pp",), removed=(), changed={})}
    assert "1 dependency or file of the release differs" in text(visitor, PLAN)


def test_nodes_that_are_not_ready_are_named_and_left_out_by_a_tick(
    site: Site, visitor: TestClient, actor: PlayedActor
) -> None:
    actor.groups = [[NodeName.parse("lb01")], [NodeName.parse("web01")]]
    assert "Not ready by their last status: lb01 (on hold)." in text(visitor, PLAN)
    page = text(visitor, f"{PLAN}&skip_unready=1")
    assert "left out if so: lb01 (on hold)." in page
    assert "no node runs" not in page
    visitor.post("/rollouts/do/start", data=confirmed(page))
    assert "--skip-unready" in actor.words[-1]
