"""The search field: what it finds, where it leads, and what it suggests."""

import html
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from localpuppet.base.formats.names import ClassName, RunId
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.web.dashboard import finding
from localpuppet.web.dashboard.finding import (
    MOST_OF_KIND,
    MOST_SUGGESTED,
    Findings,
    Names,
    find,
    run_bounds,
)
from tests.fleet.inventory.entries import entry
from tests.fleet.make import a_part
from tests.web.make import (
    EVIL,
    EVIL_LINE,
    Site,
    listed,
    run_id,
    staged,
    status,
    summarise,
    summary,
    text,
)

RUN = "20261120T140000.123456Z-00aa"
ROLLOUT = "20261120T141500Z-0b0b"

NAMES: Names = {
    "node": dict.fromkeys(["web01", "web02", "db01", "nginx", "app1.example.com"], "changed"),
    "run": {RUN: "web01"},
    "release": dict.fromkeys(
        ["web/tags/r43", "web/tags/r430", "db/tags/r7", "web/tags/r7", ""], ""
    ),
    "role": {"web": "2 nodes", "odd role": "1 node"},
    "class": dict.fromkeys(["nginx", "profile::nginx", "profile::web"], ""),
    "rollout": {ROLLOUT: "done"},
    "caller": {"choria=alice": ""},
}


def names(found: Findings) -> dict[str, list[str]]:
    return {group.kind: [hit.name for hit in group.hits] for group in found.groups}


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("WEB01", "/nodes/web01"),
        ("db0", "/nodes/db01"),
        ("App1", "/nodes/app1.example.com"),
        ("r43", "/releases?name=web%2Ftags%2Fr43"),
        ("web/tags/r7", "/releases?name=web%2Ftags%2Fr7"),
        (RUN, f"/nodes/web01/runs/{RUN}"),
        ("20261120T1400", f"/nodes/web01/runs/{RUN}"),
        ("20261120T1415", f"/rollouts/{ROLLOUT}"),
        ("alice", "/rollouts?name=choria%3Dalice"),
        ("caller:choria=alice", "/rollouts?name=choria%3Dalice"),
        ("class:nginx", "/nodes?q=Class%5Bnginx%5D"),
        ("profile::web", "/nodes?q=Class%5Bprofile%3A%3Aweb%5D"),
        ("role:web", "/nodes?q=role%3Dweb"),
        ("odd r", "/nodes?q=role%3D%22odd%20role%22"),
        ("os.family=Debian", "/nodes?q=os.family%3DDebian"),
        ("Class[nginx]", "/nodes?q=Class%5Bnginx%5D"),
    ],
)
def test_a_text_that_means_one_thing_leads_to_it(text: str, target: str) -> None:
    assert find(text, NAMES).target == target


def test_several_matches_are_grouped_by_kind() -> None:
    found = find("web", NAMES)
    assert found.target == ""
    assert names(found) == {
        "node": ["web01", "web02"],
        "release": ["web/tags/r43", "web/tags/r430", "web/tags/r7"],
        "role": ["web"],
        "class": ["profile::web"],
    }
    # A tag of two sources, and a node that has the name of a class: the node is named, the class
    # is described.
    assert names(find("r7", NAMES)) == {"release": ["db/tags/r7", "web/tags/r7"]}
    assert find("r7", NAMES).target == ""
    assert find("nginx", NAMES).target == "/nodes/nginx"
    assert names(find("class:profile", NAMES)) == {"class": ["profile::nginx", "profile::web"]}


def test_a_kind_shows_some_matches_and_counts_all() -> None:
    many = {"node": {f"node{number:03}": "" for number in range(200)}, "role": {"node0": ""}}
    found = find("node0", many)
    assert [(group.total, len(group.hits)) for group in found.groups] == [
        (100, MOST_OF_KIND),
        (1, 1),
    ]
    assert found.groups[0].url == "/nodes?name=node0"
    assert len(found.suggestions) == 11
    assert found.suggestions[:2] == [("node000", "node"), ("role:node0", "role")]
    assert len(find("n", many).suggestions) <= MOST_SUGGESTED


def test_a_suggestion_finds_only_itself() -> None:
    for words in ("web", "nginx", "choria", "2026", "r4"):
        for term, kind in find(words, NAMES).suggestions:
            found = find(term, NAMES)
            assert found.target, term
            if kind in ("role", "class", "caller"):
                assert list(names(found)) == [kind]


def test_without_a_match_similar_names_are_suggested() -> None:
    found = find("wbe01", NAMES)
    assert (found.groups, found.target) == ((), "")
    assert found.near[0] == "web01"
    assert find("ap1p", NAMES).near == ("app1.example.com",)
    assert find("r44", NAMES).near == ("web/tags/r43",)
    assert find("zzzz", NAMES).near == ()


def test_hostile_names_end_no_expression_and_no_url() -> None:
    evil = {"node": {"a/../b?x": ""}, "role": {'x" or true or "': ""}}
    assert find("a/..", evil).target == "/nodes/a%2F..%2Fb%3Fx"
    assert find("x", evil).groups[1].hits[0].url == "/nodes?q=role%3D%22x%20or%20true%20or%20%22"


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("20261120", "20261120T235959.999999Z-ffff"),
        ("20261120t", "20261120T235959.999999Z-ffff"),
        ("20261120T1", "20261120T195959.999999Z-ffff"),
        ("20261120T2", "20261120T235959.999999Z-ffff"),
        ("20261120T14", "20261120T145959.999999Z-ffff"),
        ("20261120T1400", "20261120T140059.999999Z-ffff"),
        ("20261120T140000.1", "20261120T140000.199999Z-ffff"),
        (RUN, RUN),
    ],
)
def test_the_beginning_of_an_id_is_a_range_of_runs(text: str, last: str) -> None:
    bounds = run_bounds(text)
    assert bounds is not None
    first, end = bounds
    assert end == last
    assert first.lower().startswith(text.lower())
    assert RunId.parse(first) <= end


@pytest.mark.parametrize(
    "text", ["2026112", "20269999", "20261120T3", "20261120-", "web01", RUN + "0"]
)
def test_other_texts_begin_no_run(text: str) -> None:
    assert run_bounds(text) is None


@pytest.mark.parametrize(
    ("words", "leads"),
    [
        ("web01", "/nodes/web01"),
        ("WEB01 ", "/nodes/web01"),
        ("r7", "/releases?name=web%2Ftags%2Fr7"),
        ("role:lb", "/nodes?q=role%3Dlb"),
        ("os.family=Debian", "/nodes?q=os.family%3DDebian"),
        ("", "/nodes"),
    ],
)
def test_a_single_match_is_shown_at_once(visitor: TestClient, words: str, leads: str) -> None:
    answer = visitor.get("/find", params={"text": words})
    assert (answer.status_code, answer.headers["location"]) == (303, leads)


def test_a_run_is_found_by_the_beginning_of_its_id(site: Site, visitor: TestClient) -> None:
    run = run_id(site.now() - 90)
    for words in (run, run[:20], f"run:{run[:18]}"):
        answer = visitor.get("/find", params={"text": words})
        assert answer.headers["location"] == f"/nodes/web02/runs/{run}"


def test_classes_come_from_the_inventory_and_releases_from_this_machine_too(
    site: Site, visitor: TestClient
) -> None:
    site.staged = [staged("db/tags/r43", "aa" * 32)]
    classes = (ClassName("nginx"), ClassName("profile::web"))
    site.list_(entry("web01", at=site.now(), classes=classes))
    for words, leads in (
        ("nginx", "/nodes?q=Class%5Bnginx%5D"),
        ("r43", "/releases?name=db%2Ftags%2Fr43"),
    ):
        answer = visitor.get("/find", params={"text": words})
        assert answer.headers["location"] == leads
    assert "web01" in text(visitor, "/nodes?q=Class%5Bnginx%5D")


def test_several_matches_are_a_page_by_kind(site: Site, visitor: TestClient) -> None:
    site.tell(*(status(f"web{number:03}", site.now()) for number in range(20)))
    page = text(visitor, "/find?text=web")
    assert re.findall(r'<h2 id="([a-z]+)-h">', page) == ["node", "release", "role"]
    assert '<a href="/nodes?name=web">Show all 22</a>' in page
    assert page.count('<li><a href="/nodes/web') == 10
    assert "Classes and facts were not searched" not in page


def test_without_a_match_the_page_names_fields_and_similar_names(visitor: TestClient) -> None:
    page = text(visitor, "/find?text=wbe01")
    assert "Nothing matches “wbe01”" in page
    assert "The search covers names of nodes" in page
    assert '<a href="/find?text=web01">web01</a>' in page


def test_if_no_class_can_be_searched_the_page_says_so(site: Site, visitor: TestClient) -> None:
    site.view.current = None
    page = text(visitor, "/find?text=nginx")
    assert "Classes and facts were not searched." in page
    answer = visitor.get("/find", params={"text": "web01"})
    assert answer.headers["location"] == "/nodes/web01"


def test_suggestions_are_a_few_terms_with_their_kind(site: Site, visitor: TestClient) -> None:
    site.tell(*(status(f"web{number:03}", site.now()) for number in range(20)))
    found = visitor.get("/find.json", params={"text": "web"}).json()
    assert found["suggestions"][:3] == [
        {"term": "web000", "kind": "node"},
        {"term": "web/tags/r7", "kind": "release"},
        {"term": "role:web", "kind": "role"},
    ]
    assert len(found["suggestions"]) == 12
    assert visitor.get("/find.json").json() == {"schema": 1, "suggestions": []}


def test_suggestions_need_a_session(site: Site) -> None:
    with site.visitor(enters=False) as stranger:
        assert stranger.get("/find.json", params={"text": "web"}).status_code == 403


CONF = a_part(
    "File[/etc/haproxy/haproxy.cfg]",
    file="lb/manifests/init.pp",
    line=7,
    status=ResourceResult.CHANGED,
)


@pytest.fixture
def past(site: Site) -> Site:
    """Add two nodes that changed a file, an earlier error, and facts."""
    now = site.now()
    runs = [
        summary(node, now - ago, outcome=Kind.CHANGED, resources=(CONF,))
        for node, ago in (("lb01", 90_000), ("lb01", 9_000), ("web01", 500))
    ]
    error = "Unknown variable: 'vip'"
    broken = {"outcome": Kind.COMPILE_FAILED, "reason": error, "place": "lb/manifests/vip.pp:3"}
    summarise(site, *runs, summary("lb01", now - 100_000, **broken))
    cause = {"error": "Could not find class ::ntp for …", "place": "lb/manifests/ntp.pp:1"}
    failed = {"outcome": "failed", "category": "no_report"}
    cause["resource"] = ""
    site.tell(status("web02", now - 90, last_run={**failed, "failure_cause": cause}))
    facts = {"networking": {"ip": "10.0.3.7"}, "os": {"name": "Debian", "evil": EVIL}}
    site.list_(
        entry("web01", at=now, roles=("web",), facts=facts, classes=(ClassName("nginx"),)),
        entry("web02", at=now, roles=("web",), facts={**facts, "kernel": "Linux"}),
    )
    return site


def hits(page: str) -> dict[str, list[str]]:
    """Return the matches of a page by kind, each as its text."""
    sections = re.findall(r'<h2 id="([a-z]+)-h">.*?<ul class="list">(.*?)</ul>', page, re.DOTALL)
    return {
        kind: [
            re.sub(r"\d+ \w+ [\d:]{5} UTC", "TIME", re.sub(r"<[^>]+>", "", hit))
            for hit in re.findall(r"<li>(.*?)</li>", found)
        ]
        for kind, found in sections
    }


CHANGED = [
    "File[/etc/haproxy/haproxy.cfg] changed on web01, TIME, lb/manifests/init.pp:7",
    "File[/etc/haproxy/haproxy.cfg] corrected on lb01, TIME, lb/manifests/init.pp:7",
]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("which nodes changed File[/etc/haproxy/haproxy.cfg]?", {"resource": CHANGED}),
        ("haproxy.CFG", {"resource": CHANGED}),
        ("migration", {"hold": ["lb01 database migration (alice)"]}),
        ("ntp.pp", {"failure": ["Could not find class ::ntp for … 1 node, lb/manifests/ntp.pp:1"]}),
        ("vip", {"error": ["Unknown variable: 'vip' compile failed on lb01, web/tags/r7"]}),
        ("10.0.3", {"fact": ["networking.ip = 10.0.3.7 2 nodes"]}),
        ("linux", {"fact": ["kernel = Linux web02"]}),
        ("compile fail", {"result": ["compile failed 1 node"]}),
        ("on hold", {"state": ["on hold 1 node"]}),
        ("%_", {}),
    ],
)
def test_words_of_runs_holds_errors_and_facts_are_found(
    past: Site, words: str, found: dict[str, list[str]]
) -> None:
    with past.visitor() as client:
        answer = client.get("/find", params={"text": words})
    if answer.status_code == 303:  # the only match
        target, kinds = answer.headers["location"], {"error": "/runs/", "resource": "/runs/"}
        expected = {"hold": "/nodes/lb01", "failure": "?failure_cause=", "result": "?outcome="}
        expected |= {"fact": "networking.ip" if "10" in words else "?fact=", "state": "?is=on"}
        ((kind, (_,)),) = found.items()
        assert {**expected, **kinds}[kind] in target
        return
    shown = hits(answer.text)
    assert {kind: shown.get(kind) for kind in found} == found
    assert "<script>alert" not in answer.text


FACTS_OF_TWO: dict[str, Any] = {
    "is_virtual": True,
    "count": 1234,
    "load": -12.75,
    "tiny": 1e-17,
    "version": "1.10",
    "models": [640, 480],
    "dotted.name": {"a b": "spaced out", "or": "keyword", "0": "a digit"},
    "quotes": 'say "hello"',
    "path": "C:\\new\\",
    "key": "AAAAB3" + "x" * 2000,
    "pem": "KEY" + "y" * 500,
}


@pytest.mark.parametrize(
    "words",
    [
        *("true", "1234", "-12.75", "e-17", "1.10", "640", "spaced", "keyword", "digit"),
        *('y "hel', "c:\\new", "aaaab3", "keyyyy"),
    ],
)
def test_a_fact_of_several_nodes_leads_to_a_view_that_has_it(site: Site, words: str) -> None:
    now = site.now()
    nodes = ("web01", "lb01")
    site.list_(
        *(entry(node, at=now, facts=FACTS_OF_TWO) for node in nodes),
        entry("web02", at=now, facts={"version": "1.1", "is_virtual": False}),
    )
    with site.visitor() as client:
        answer = client.get("/find", params={"text": words})
        assert answer.status_code == 303
        page = text(client, answer.headers["location"])
    if answer.headers["location"].startswith("/nodes?"):
        assert sorted(listed(page)) == sorted(nodes)
    else:
        assert words.lower() in html.unescape(page).lower()


def test_a_search_that_takes_too_long_says_so(past: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "SECONDS", -1.0)
    monkeypatch.setattr(finding, "_STEPS", 1)
    with past.visitor() as client:
        assert "The search stopped" in text(client, "/find?text=haproxy")
        monkeypatch.undo()
        assert "The search stopped" not in text(client, "/find?text=haproxy")


def test_hostile_words_match_only_themselves_and_are_text(past: Site) -> None:
    past.tell(status("web03", past.now(), last_run={"release": EVIL_LINE}))
    words = ("' OR 1=1 --", '"; DROP TABLE runs', "\0\0\0", "[" * 200, "\\%_*?", EVIL, "<script>")
    with past.visitor() as client:
        for word in (*words, "//evil.example.com", "x\r\nset-cookie: a"):
            answer = client.get("/find", params={"text": word})
            assert answer.status_code in (200, 303), word
            assert answer.headers.get("location", "/").startswith("/")
            assert not answer.headers.get("location", "/").startswith("//")
            assert "set-cookie" not in answer.headers
            assert "resource" not in hits(answer.text)
            assert "<script>alert" not in answer.text
            assert "\u202e" not in answer.text
        assert "haproxy.cfg" in text(client, "/find?text=haproxy")


def test_two_nodes_are_shown_side_by_side(past: Site) -> None:
    with past.visitor() as client:
        answer = client.get("/find", params={"text": "web01 web02"})
        assert answer.headers["location"] == "/compare?a=web01&b=web02"
        page = re.sub(
            r"\s+", " ", re.sub(r"<[^>]+>", " ", text(client, "/compare?a=web01&b=web02"))
        )
        for row in (
            "last run changed compile failed",
            "nginx yes —",
            "kernel — Linux",
            "first error — Could not find class ::ntp for … lb/manifests/ntp.pp:1",
        ):
            assert row in page, row
        assert "10.0.3.7" not in page
        assert "equal values" in page
        assert "The nodes do not differ" in text(client, "/compare?a=web01&b=web01")
        assert "<script>alert" not in text(client, "/compare?a=web01&b=lb01")
        for query, code in (("a=web01&b=absent", 404), ("a=web01", 400), ("a=/&b=web01", 400)):
            assert client.get(f"/compare?{query}").status_code == code
