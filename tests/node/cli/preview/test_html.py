"""A preview as one HTML file, in which text of a pull request cannot run."""

import base64
import hashlib
import re

from localpuppet.node.cli.preview.pages import preview_html
from tests.node.cli.preview.markup import ParsedMarkup
from tests.node.cli.preview.results import hostile, large, usual


def test_the_page_has_all_parts() -> None:
    page = ParsedMarkup(preview_html(usual()))
    assert not page.open
    assert page.elements["section"] == 8
    for text in (
        "1,204 nodes: 1,167 unaffected",
        "2 nodes fail to compile with the change",
        "web26.example.com",
        "Service[nginx-exporter]",
        "37 catalogs compiled",
    ):
        assert text in page.text


def test_text_of_the_repository_adds_no_html_element() -> None:
    text = preview_html(hostile())
    page, other = ParsedMarkup(text), ParsedMarkup(preview_html(usual()))
    assert set(page.elements) <= set(other.elements)
    assert page.elements["script"] == page.elements["style"] == 1
    assert page.attributes <= other.attributes
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "$title" in page.text


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
