"""Releases that are staged: who signed them, and how they differ, as a view and as files."""

import asyncio
import json
import re
import threading
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.releases.comparison import NameDifference
from localpuppet.node.releases.release_records import StagedRecords, TagMemory
from localpuppet.web.dashboard.differences import (
    MOST_LINES,
    ChangeRow,
    DifferenceViews,
    FileDiff,
    changes,
)
from localpuppet.web.dashboard.releases import (
    MOST_TEXT,
    NOBODY,
    UNTOLD,
    StagedReleases,
    predecessors,
)
from localpuppet.web.dashboard.view_context import TemplateRenderer
from tests.rigs.node import Node
from tests.rigs.staged import R1, R2, ReleaseSite, url
from tests.rigs.waiting import PATIENCE
from tests.web.make import (
    DIFFERENCE,
    EVIL,
    PlayedReleases,
    Site,
    run_id,
    staged,
    status,
    summary,
    text,
)


class Signed:
    """A node on which two releases are staged, signed by alice."""

    def __init__(self, root: Path) -> None:
        self.site = ReleaseSite(root)
        self.signers = root / "signers"
        self.signers.write_text("alice bob\n")
        self.site.sources["web"] = self.site.source("web", self.signers)
        for app in (R1, R2):
            tag = app.rpartition("/")[2]
            files = self.site.files(tag)
            self.site.servers.publish(url("web"), tag, files, signer="alice")
            self.site.staging().stage(app)
        self.here = self.made()

    def made(self) -> StagedReleases:
        site = self.site
        return StagedReleases(
            StagedRecords(site.state),
            site.resolve,
            repository=site.repository,
            sources=site.sources,
            reader=site.release_files,
            tags=TagMemory(site.state),
            monotonic=site.clock.monotonic,
        )


@pytest.fixture
def signed(tmp_path: Path) -> Signed:
    return Signed(tmp_path)


def test_the_signer_follows_from_the_current_signers_file(signed: Signed) -> None:
    first, second = signed.here.all()
    assert signed.here.signed(first) == "alice"
    signed.signers.write_text("bob\n")
    assert signed.here.signed(first) == NOBODY
    assert signed.here.signed(second) == NOBODY
    signed.signers.write_text("alice carol\n")
    assert signed.here.signed(first) == "alice"
    signed.signers.unlink()
    assert signed.here.signed(first) == UNTOLD


def test_a_moved_tag_does_not_name_the_signer_of_the_staged_release(signed: Signed) -> None:
    site, first = signed.site, signed.here.all()[0]
    site.servers.publish(url("web"), "r1", {"a": b"b"}, signer="bob")
    site.repository.fetch([(url("web"), "r1")], refresh=True)
    assert site.repository.verify_signature(url("web"), "r1", signers=signed.signers).name == "bob"
    assert signed.here.signed(first) == UNTOLD
    tags = [signed.here.about(one.release) for one in signed.here.all()]
    assert [tag and tag.subject for tag in tags] == [None, "r2"]


def test_a_signature_is_judged_once_for_each_signers_file(signed: Signed) -> None:
    site, first = signed.site, signed.here.all()[0]
    signed.signers.write_text("bob\n")
    assert signed.here.signed(first) == NOBODY
    # The tag moves: a second judgement has another result.
    site.servers.publish(url("web"), "r1", {"a": b"b"}, signer="bob")
    site.repository.fetch([(url("web"), "r1")], refresh=True)
    assert signed.here.signed(first) == NOBODY
    assert signed.made().signed(first) == UNTOLD


def test_all_signers_are_named_if_several_are_required(signed: Signed) -> None:
    source = signed.site.sources["web"]
    signed.site.servers.countersign(url("web"), "r1", "bob")
    signed.site.repository.countersignatures(
        url("web"), "r1", signers=signed.signers, source="web", refresh=True
    )
    signed.site.sources["web"] = replace(source, signatures=2)
    assert signed.made().signed(signed.here.all()[0]) == "alice, bob"


def test_without_required_signatures_no_signer_is_named(signed: Signed) -> None:
    signed.site.sources["web"] = signed.site.source("web")
    assert signed.made().signed(signed.here.all()[0]) == ""


def test_two_releases_are_compared_file_by_file(signed: Signed) -> None:
    found = signed.here.differences(R1, R2)
    assert set(found) == {"dependencies", "files"}
    assert not found["dependencies"]
    assert list(found["files"].changed) == ["web/manifests/init.pp"]
    assert not any(signed.here.differences(R1, R1).values())


def test_differing_files_are_compared_as_text_up_to_a_limit(signed: Signed) -> None:
    found = signed.here.texts(R1, R2, ["web/manifests/init.pp", "manifest.yaml"])
    head = "--- web/tags/r1/web/manifests/init.pp\n+++ web/tags/r2/web/manifests/init.pp\n"
    text = "-class web { notify { 'r1': } }\n+class web { notify { 'r2': } }"
    assert found["web/manifests/init.pp"] == f"{head}@@ -1 +1 @@\n{text}"
    code = "class web { notify { 'r1': } }\n"
    assert signed.here.manifest(R1, "web/manifests/init.pp") == ("web/manifests/init.pp", code)
    outside = signed.site.root / "secret.pp"
    outside.write_text("secret")
    for place in (f"{'../' * 20}{outside}", str(outside), "manifest.yaml", "web/absent.pp", ""):
        assert signed.here.manifest(R1, place) == ("", "")
    assert found["manifest.yaml"] == "no difference in content"
    with pytest.raises(InvalidInputError, match="web/tags/r3: is not staged"):
        signed.here.texts(R1, ReleasePath("web/tags/r3"), [])
    large = signed.site.files("r9") | dict.fromkeys("abc", (b"x" * 63 + b"\n") * 4000)
    signed.site.servers.publish(url("web"), "r9", large, signer="alice")
    signed.site.staging().stage(ReleasePath("web/tags/r9"))
    cut = signed.here.texts(R1, ReleasePath("web/tags/r9"), ["a", "b", "c"])
    assert [cut[name].startswith("--- ") for name in "abc"] == [True, True, False]
    assert cut["c"] == f"not shown: the diffs before it have {MOST_TEXT} characters"


def test_the_previous_release_is_that_by_tag_timestamp(signed: Signed) -> None:
    first, second = signed.here.all()
    memory = TagMemory(signed.site.state)
    memory.note_time(first.pin.tag_object, 2000)
    memory.note_time(second.pin.tag_object, 1000)
    assert predecessors(signed.here.tagged()) == {R1: R2}
    (signed.site.state / "tags.json").write_text("[]")
    assert predecessors(signed.here.tagged()) == {}


def test_only_staged_releases_are_compared(signed: Signed) -> None:
    asked = list(signed.site.repository.asked)
    with pytest.raises(InvalidInputError, match=r"web/tags/r3: is not staged.*localpuppet stage"):
        signed.here.differences(R1, ReleasePath("web/tags/r3"))
    assert signed.site.repository.asked == asked


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


def test_a_difference_is_shown_with_both_signers(two: Site, visitor: TestClient) -> None:
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


def test_people_over_tls_who_may_not_read_releases_see_no_text_of_files(two: Site) -> None:
    two.texts = {"web/b.pp": "--- a\n+++ b\n@@ -1 +0,0 @@\n-password: sesame"}
    views = DifferenceViews(PlayedReleases(two), two.fleet, TemplateRenderer(two.fleet, two.clock))
    page = bytes(asyncio.run(views.page(_request())).body).decode()
    assert "web/b.pp" in words(page)
    assert "sesame" not in page
    assert "web.release_readers does not list you" in words(page)
    two.manifests = {"web/b.pp": "sesame"}

    def code(place: str, worked: str = "") -> Any:
        failed = summary("web01", two.now(), place=place)
        return asyncio.run(views.code(_request(), failed, worked, "web/tags/r7"))

    assert code("web/b.pp:1", "web/tags/r6") == ((), None)
    views.reads_code = lambda _: True
    assert code("web/b.pp:1")[0] == [(1, "sesame")]
    for place in ("web/b.pp", "web/b.pp:x", "web/b.pp:99999999999999", "a\0.pp:1", "a.pp:0"):
        assert code(place, "not a release")[1] is None


def test_beside_an_error_is_the_nearest_change_of_its_file() -> None:
    before = [f"line {number}" for number in range(1, 101)]
    after = [*before[:10], "new 1", *before[10:50], "new 2", *before[50:90], "new 3", *before[90:]]
    diff = FileDiff.of("x", "\n".join(unified_diff(before, after, "a", "b", lineterm="")))
    for line, new in ((1, 1), (11, 1), (30, 1), (33, 2), (52, 2), (75, 3), (10**9, 3)):
        near = diff.nearest(line)
        assert [text for style, text in near.lines if style == "added"] == [f"+new {new}"]
        assert near.left_out == 2


def test_each_release_links_to_its_predecessor(two: Site, visitor: TestClient) -> None:
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


async def test_requests_that_wait_for_a_difference_take_no_thread(two: Site) -> None:
    at_once: list[int] = []
    begun, going_on = threading.Event(), threading.Event()

    class SlowReleases(PlayedReleases):
        def differences(self, *_: ReleasePath) -> dict[str, NameDifference]:
            at_once.append(1)
            begun.set()
            assert going_on.wait(PATIENCE)
            return {}

    views = DifferenceViews(SlowReleases(two), two.fleet, TemplateRenderer(two.fleet, two.clock))
    many = [asyncio.create_task(views.page(_request())) for _ in range(3)]
    await asyncio.to_thread(begun.wait, 60)
    together = len(at_once)
    going_on.set()
    assert together == 1
    assert [answer.status_code for answer in await asyncio.gather(*many)] == [200] * 3


def test_each_thing_is_a_row_dependencies_before_files() -> None:
    found = changes(
        {
            "dependencies": NameDifference(added=(), removed=("b",), changed={"a": "v1 → v2"}),
            "files": NameDifference(added=("0",), removed=(), changed={}),
        }
    )
    assert found == [
        ChangeRow(of="dependencies", name="a", change="changed", how="v1 → v2"),
        ChangeRow(of="dependencies", name="b", change="removed"),
        ChangeRow(of="files", name="0", change="added"),
    ]
    assert changes({"files": NameDifference(added=(), removed=(), changed={})}) == []


def test_commits_and_authors_link_to_the_forge(two: Site) -> None:
    forge = "https://git.example.com/puppet/web"
    two.forge = {
        "commit_url_format": f"{forge}/-/commit/{{hash}}",
        "user_url_format": f"{forge}/search?user={{user}}",
    }
    two.tell(status("web01", two.now(), last_run={"release": "web/tags/r7"}))
    links = (
        f'<a href="{forge}/-/commit/{"b" * 40}" rel="noreferrer">{"b" * 12}</a>',
        f'<a href="{forge}/search?user=Carol%20Doe" rel="noreferrer">Carol Doe</a>',
    )
    with two.visitor() as visitor:
        for path in ("/releases", DIFFERENCE, f"/nodes/web01/runs/{run_id(two.now())}"):
            page = text(visitor, path)
            assert all(link in page for link in links), path


@pytest.mark.parametrize(
    "form",
    [
        "javascript:alert('{hash}')//x/{hash}",
        "https://{hash}/x",
        "https://git.example.com/commit",
        "https://git.example.com/{hash}/{user}",
        "https://git.example.com/{hash} x",
        "ftp://git.example.com/{hash}",
    ],
)
def test_the_url_of_a_commit_is_one_of_the_web_with_its_place(node: Node, form: str) -> None:
    source = {"git": "https://git.example.com/web.git", "commit_url_format": form}
    node.settings(sources={"web": source})
    result = node.run("status", code=2)
    assert "commit_url_format" in result.err
