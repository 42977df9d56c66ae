"""The difference of two releases, as a view and as files."""

import asyncio
import json
import re
import threading

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.releases.comparison import NameDifference
from localpuppet.web.dashboard.differences import MOST_LINES, DifferenceViews
from localpuppet.web.dashboard.template_renderer import TemplateRenderer
from tests.web.dashboard.site import DIFFERENCE, EVIL, PlayedReleases, Site, staged, text


@pytest.fixture
def two(site: Site) -> Site:
    site.staged = [staged("web/tags/r7", "aa" * 32), staged("web/tags/r9", "dd" * 32)]
    site.differences = {
        "dependencies": NameDifference(added=(), removed=(), changed={"module ntp": "v1 → v2"}),
        "files": NameDifference(added=("=web/a.pp", EVIL), removed=("web/b.pp",), changed={}),
    }
    return site


def _request() -> Request:
    query = DIFFERENCE.partition("?")[2].encode()
    return Request({"type": "http", "query_string": query, "headers": []})


def words(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.replace("<wbr>", "")))


def test_a_difference_is_shown_with_the_signers_of_both_releases(
    two: Site, visitor: TestClient
) -> None:
    page = text(visitor, DIFFERENCE)
    shown = words(page)
    for part in ("module ntp changed v1 → v2", "web/b.pp removed", "1 to 4 of 4"):
        assert part in shown, part
    assert shown.count("signed by alice") == 2
    assert "&lt;b&gt;r9&lt;/b&gt;: ntp is faster" in page
    assert "<script>" not in page
    assert "\u202e" not in page
    assert "signed by alice" in words(text(visitor, "/releases"))
    assert json.loads(text(visitor, "/releases.json"))["releases"][-1]["signed"] == "alice"


def test_differing_files_are_shown_as_text(two: Site, visitor: TestClient) -> None:
    lines = "".join(f"+line {number}\n" for number in range(MOST_LINES))
    two.texts = {
        "=web/a.pp": f"--- a\n+++ b\n@@ -0,0 +1 @@\n+\tb \u202e{EVIL}\n-{'x' * 9999}\n{lines}",
        "web/b.pp": "not shown: a binary file",
    }
    page = text(visitor, DIFFERENCE)
    assert (
        '<span class="place">@@ -0,0 +1 @@</span>\n<span class="added">+   b \\u202e&lt;scr' in page
    )
    assert "<script>" not in page
    assert "x" * 498 + "…</span>" in page
    assert "and 4 more lines:" in page
    assert "web/b.pp not shown: a binary file" in words(page)


def test_people_over_tls_see_no_text_of_files(two: Site) -> None:
    two.texts = {"web/b.pp": "--- a\n+++ b\n@@ -1 +0,0 @@\n-password: sesame"}
    views = DifferenceViews(PlayedReleases(two), two.fleet, TemplateRenderer(two.fleet, two.clock))
    page = bytes(asyncio.run(views.page(_request())).body).decode()
    assert "web/b.pp" in words(page)
    assert "sesame" not in page
    assert "Files are shown as text on loopback only." in page


def test_each_release_links_to_the_comparison_with_the_previous_one(
    two: Site, visitor: TestClient
) -> None:
    page = text(visitor, "/releases")
    (url,) = re.findall('<a href="(/releases/difference[^"]+)">compare with previous', page)
    assert "1 to 4 of 4" in words(text(visitor, url.replace("&amp;", "&")))


def test_a_difference_can_be_downloaded_as_a_file(two: Site, visitor: TestClient) -> None:
    url = DIFFERENCE.partition("?")[2]
    found = json.loads(text(visitor, f"/releases/difference.json?{url}"))["changes"]
    first = {"of": "dependencies", "name": "module ntp", "change": "changed", "how": "v1 → v2"}
    assert found[0] == first
    assert "files,'=web/a.pp,added," in text(visitor, f"/releases/difference.csv?{url}")
    assert "web/b.pp\n" in text(visitor, f"/releases/difference.txt?{url}")
    assert "<h1>" in text(visitor, f"/releases/difference.exe?{url}", 404)
    assert "<h1>" in text(visitor, "/releases/difference.json", 400)


def test_many_changes_are_many_pages(two: Site, visitor: TestClient) -> None:
    many = tuple(f"web/{number:04}.pp" for number in range(450))
    two.differences = {"files": NameDifference(added=many, removed=(), changed={})}
    page = text(visitor, DIFFERENCE)
    assert page.count("<td data-label") == 3 * 100
    (url,) = re.findall('rel="next" href="(.*?)"', page)
    assert "101 to 200 of 450" in words(text(visitor, url.replace("&amp;", "&")))


def test_the_same_bytes_do_not_differ(two: Site, visitor: TestClient) -> None:
    two.differences = {"files": NameDifference(added=(), removed=(), changed={})}
    assert "The releases do not differ." in text(visitor, DIFFERENCE)


def test_an_unstaged_release_is_an_error_and_is_not_fetched(two: Site, visitor: TestClient) -> None:
    page = text(visitor, DIFFERENCE.replace("r9", "r8"))
    assert "web/tags/r8: is not staged on this machine" in page
    assert "Compare" in text(visitor, "/releases/difference")


@pytest.mark.parametrize("query", ["from=../x", "to=%3Cscript%3E", "page=0", "page=x", "x=1"])
def test_a_url_is_understood_whole_or_refused(visitor: TestClient, query: str) -> None:
    assert "<h1>" in text(visitor, f"/releases/difference?{query}", 400)


def test_without_a_staged_release_the_view_has_a_note(site: Site, visitor: TestClient) -> None:
    assert "No release is staged on this machine." in text(visitor, "/releases/difference")


def test_requests_that_wait_for_a_difference_take_no_thread(two: Site) -> None:
    at_once: list[int] = []
    begun, going_on = threading.Event(), threading.Event()

    class SlowReleases(PlayedReleases):
        def differences(self, *_: ReleasePath) -> dict[str, NameDifference]:
            at_once.append(1)
            begun.set()
            assert going_on.wait(60)
            return {}

    async def main() -> None:
        views = DifferenceViews(
            SlowReleases(two), two.fleet, TemplateRenderer(two.fleet, two.clock)
        )
        many = [asyncio.create_task(views.page(_request())) for _ in range(3)]
        await asyncio.to_thread(begun.wait, 60)
        together = len(at_once)
        going_on.set()
        assert together == 1
        assert [answer.status_code for answer in await asyncio.gather(*many)] == [200] * 3

    asyncio.run(main())
