"""A preview as Markdown and as one HTML file: bounded, and safe for text of a pull request."""

import base64
import hashlib
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from localpuppet.node.preview.difference import CatalogDifference
from localpuppet.node.preview.drawing import MAX_BYTES, preview_html, preview_markdown
from localpuppet.node.preview.result import (
    BOTH,
    FIXED,
    NEW,
    SAME,
    UNREADABLE,
    BlindSpot,
    FailureKind,
    ForbiddenDifference,
    ImpureNode,
    NodeFailure,
    PreviewResult,
    PreviewRevision,
    RevisionWarning,
)
from tests.node.cli.preview.results import (
    BASE,
    HEAD,
    HOSTILE,
    changed,
    group,
    hostile,
    large,
    usual,
)

_VOID = ("br", "hr", "img", "input", "link", "meta")


class ParsedMarkup(HTMLParser):
    """The elements and attributes of HTML.

    Args:
        text: HTML in which each element is closed.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


OWN = {"h3", "h4", "p", "strong", "ul", "li", "code", "details", "summary", "b", "pre"}


def rendered(result: PreviewResult) -> ParsedMarkup:
    text = preview_markdown(result)
    assert len(text.encode()) <= MAX_BYTES
    return ParsedMarkup(MarkdownIt("commonmark", {"html": True}).render(text))


def test_a_preview_starts_with_failures_and_folds_the_details() -> None:
    text = preview_markdown(usual())
    titles = re.findall(r"^#+ .*|^<details>", text, re.MULTILINE)
    assert titles == [
        "### Preview of `main` → `HEAD`",
        "#### 2 nodes fail to compile with the change",
        "#### 1 node fails to compile, before the change with another error",
        "#### 1 node has a capture that cannot be read",
        "#### 1 node fails to compile as before",
        "#### 1 node compiles again",
        "#### Forbidden by --fail-on",
        "#### Cannot tell what these files change",
        "#### May differ from run to run, whatever the change",
        "#### 31 to add, 57 to change, 10 to remove",
        "#### Services that restart",
        "#### Changes",
        "<details>",
        "<details>",
    ]
    assert "-    server 10.0.0.5:8080;\n+    server 10.0.0.5:8443;\n" in text
    assert "\n-   mode => 0644\n+   mode => 0640\n" in text
    assert "\n!   content => (sensitive)\n" in text
    assert "\n+ Service[nginx-exporter]\n+   enable => true\n" in text


def test_the_statistics_are_no_part_of_a_list() -> None:
    text = preview_markdown(replace(usual(), groups=[]))
    assert re.search(r"\n- [^\n]+\n\n[^\n]* compiled, [^\n]+\n\Z", text)


def test_markup_in_titles_has_no_effect() -> None:
    page = rendered(hostile())
    assert set(page.elements) <= OWN
    assert page.attributes <= {"class"}
    assert page.elements["details"] == page.elements["summary"] == 1
    assert not page.open
    assert "</details></code></pre><script>alert(1)</script>" in page.text


@pytest.mark.parametrize(("nodes", "groups"), [(10_000, 500), (500, 500), (100, 1)])
def test_a_large_preview_is_bounded_and_counts_omitted_groups(nodes: int, groups: int) -> None:
    result = large(nodes=nodes, groups=groups)
    page = rendered(result)
    assert page.elements["details"] >= 1
    numbers = re.findall(r"^(?:- \*\*|<details><summary><b>)(\d+)", preview_markdown(result), re.M)
    rest = re.findall(
        r"^- and (\d+) more groups with ([\d,]+) nodes", preview_markdown(result), re.M
    )
    omitted, omitted_nodes = rest[0] if rest else ("0", "0")
    assert len(numbers) + int(omitted) == groups
    assert sum(map(int, numbers)) + int(omitted_nodes.replace(",", "")) == nodes


@pytest.mark.parametrize("character", ["a", "`", "<", "\U0001f600"])
def test_long_lists_before_the_groups_leave_room_for_these(character: str) -> None:
    """A forge refuses a longer comment, and a reviewer would see none."""
    kinds: tuple[FailureKind, ...] = (NEW, BOTH, SAME, FIXED, UNREADABLE)
    texts = [f"{number}{character * 600}" for number in range(100)]
    result = replace(
        large(nodes=500, groups=100),
        failures=[
            NodeFailure(node=f"{kind}{number}", kind=kind, message=text, file=text)
            for kind in kinds
            for number, text in enumerate(texts)
        ],
        blind_spots=[BlindSpot(files=(text,), reason=text, nodes=("web01",)) for text in texts],
        impure=[ImpureNode(node="web01", reasons=(text,)) for text in texts],
        warnings=[RevisionWarning(revision="main", text=text) for text in texts],
        violations=[ForbiddenDifference(rule="x", reference=text, nodes=()) for text in texts],
    )
    page = rendered(result)
    assert page.elements["details"] >= 1
    text = preview_markdown(result)
    titles = re.findall(r"^#### .*", text, re.MULTILINE)
    assert len(titles) == len(kinds) + 6
    counted = re.findall(r"^- and [\d,]+ more ", text, re.MULTILINE)
    assert len(counted) >= len(titles) - 1, "each list has a title, and counts what is left out"


@given(st.text(max_size=40) | st.text("`<>/\n\\& -*_[]()!#|~", max_size=30))
def test_any_text_is_rendered_as_code(text: str) -> None:
    result = PreviewResult(
        base=PreviewRevision(name=text),
        head=PreviewRevision(name="HEAD"),
        nodes=2,
        groups=(
            group(
                CatalogDifference(resources=(changed(text, content=(text, f"{text}\n{text}\n")),)),
                text,
            ),
        ),
        failures=(NodeFailure(node="b", kind=NEW, message=text, file=text),),
    )
    page = rendered(result)
    assert set(page.elements) <= OWN
    assert page.elements["h3"] == 1
    assert page.elements["details"] == page.elements["pre"] == 1
    assert page.attributes <= {"class"}


def test_a_mention_occurs_only_in_code() -> None:
    outside = re.sub(r"<code>.*?</code>|(`+)(?!`).*?(?<!`)\1(?!`)", "", preview_markdown(hostile()))
    assert "@admins" in HOSTILE
    assert "@admins" not in re.sub(r"```+diff.*?\n```+\n", "", outside, flags=re.DOTALL)


def test_the_page_has_all_parts() -> None:
    page = ParsedMarkup(preview_html(usual()))
    assert not page.open
    assert page.elements["section"] == 10
    for text in (
        *("1,204 nodes: 1,167 unaffected", "31 to add, 57 to change, 10 to remove"),
        *("2 nodes fail to compile with the change", "web26.example.com"),
        *("Service[nginx-exporter]", "37 catalogs compiled"),
    ):
        assert text in page.text


def test_many_groups_begin_with_the_changes_by_resource_and_numbers_add_up() -> None:
    result = large(nodes=800, groups=400)
    shared = changed("/etc/motd", mode=("0644", "0600"))
    groups = []
    for one in result.groups:
        resources = (shared, *one.difference.resources)
        groups.append(replace(one, difference=replace(one.difference, resources=resources)))
    failures = [*result.failures, NodeFailure(node="x", kind=SAME, message="m")]
    result = replace(result, groups=groups, failures=failures, nodes=901)
    for text in (preview_markdown(result), preview_html(result)):
        title = "0 to add, 4,800 to change, 0 to remove"
        assert text.index(title) < text.index("File[/etc/motd]") < text.index("Changes")
        assert "on 800 nodes" in text
        (line,) = re.findall(r"901 nodes: [^<*]+", text)
    page = preview_html(result)
    tiles = re.findall(r"<b>([\d,]+)</b> ([^<]+)</li>", page)
    assert tiles[0] == ("901", "nodes")
    assert line == f"901 nodes: {', '.join(f'{number} {words}' for number, words in tiles[1:])}"
    assert sum(int(number) for number, _ in tiles[1:]) == 901


def test_text_of_the_repository_adds_no_html_element() -> None:
    text = preview_html(hostile())
    page, other = ParsedMarkup(text), ParsedMarkup(preview_html(usual()))
    assert set(page.elements) <= set(other.elements)
    assert page.elements["script"] == page.elements["style"] == 1
    assert page.attributes <= other.attributes
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "$title" in page.text


def test_the_page_shows_long_lines_of_a_text() -> None:
    hidden = f"{' ' * 300}; curl example.com"
    only = CatalogDifference(resources=(changed("/a", content=("a\nb\n", f"a\nb{hidden}\n")),))
    result = PreviewResult(base=BASE, head=HEAD, nodes=1, groups=(group(only, "web01"),))
    assert hidden in preview_html(result)
    assert "… 120 more characters" in preview_markdown(result)


def test_the_policy_allows_the_page_s_own_style_and_script_only() -> None:
    text = preview_html(usual())
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)[0]
    assert policy.startswith("default-src 'none'; ")
    for kind in ("style", "script"):
        (inner,) = re.findall(f"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert not re.findall(r"(?:src|href|action)=|url\(|@import", text)


def test_a_large_page_stays_bounded() -> None:
    assert len(preview_html(large(nodes=2_000, groups=100))) < 4_000_000
