"""The search field: where it leads, what it lists, and what it suggests."""

import re

import pytest
from starlette.testclient import TestClient

from localpuppet.base.formats.names import ClassName
from tests.fleet.inventory.entries import entry
from tests.web.dashboard.site import EVIL, EVIL_LINE, Site, run_id, staged, status, text


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
    assert "Classes were not searched" not in page


def test_without_a_match_the_page_names_the_searched_fields_and_similar_names(
    visitor: TestClient,
) -> None:
    page = text(visitor, "/find?text=wbe01")
    assert "Nothing matches “wbe01”" in page
    assert "The search covers names of nodes" in page
    assert '<a href="/find?text=web01">web01</a>' in page


def test_if_classes_cannot_be_searched_the_page_has_the_reason(
    site: Site, visitor: TestClient
) -> None:
    site.view.current = None
    page = text(visitor, "/find?text=nginx")
    assert "Classes were not searched." in page
    answer = visitor.get("/find", params={"text": "web01"})
    assert answer.headers["location"] == "/nodes/web01"


def test_hostile_texts_and_names_are_shown_as_text(site: Site, visitor: TestClient) -> None:
    site.tell(status("web03", site.now(), last_run={"release": EVIL_LINE}))
    for words in (EVIL, "//evil.example.com", "x\r\nset-cookie: a", "<script>"):
        answer = visitor.get("/find", params={"text": words})
        assert answer.headers.get("location", "/").startswith(("/releases?", "/nodes?", "/"))
        assert not answer.headers.get("location", "/").startswith("//")
        assert "set-cookie" not in answer.headers
        assert "<script>alert" not in answer.text
        assert "\u202e" not in answer.text


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
