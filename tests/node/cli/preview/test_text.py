"""A preview in a terminal."""

import re
from collections.abc import Callable
from dataclasses import replace

import click
import pytest

from localpuppet.node.cli.preview.preview_command import preview_text
from localpuppet.node.preview.difference import CatalogDifference
from localpuppet.node.preview.drawing import preview_html, preview_markdown
from localpuppet.node.preview.result import ImpureNode, PreviewResult, ResealedGroup
from localpuppet.node.preview.wording import WARNING, notices
from tests.node.cli.preview.results import BASE, HEAD, changed, group, hostile, large, usual


def plain(result: PreviewResult) -> str:
    return click.unstyle(preview_text(result))


def test_a_preview_starts_with_counts_and_failures() -> None:
    lines = plain(usual()).splitlines()
    assert lines[:8] == [
        "1,204 nodes: 1,167 unaffected, 31 change in 2 ways, 3 fail to compile,"
        " 1 has no readable capture, 1 fails as before, 1 compiles again",
        "main (3f2a1c9d0b1e) → HEAD (8be0c2d1e3f4)",
        "",
        "2 nodes fail to compile with the change:",
        "  manifests/site.pp:12: Could not find class ::ntp::client for ⟨fqdn⟩",
        "    mail01.example.com, mail02.example.com",
        "",
        "1 node fails to compile, before the change with another error:",
    ]
    assert lines[8:17] == [
        "  no role",
        "    old1",
        "",
        "1 node has a capture that cannot be read:",
        "  old4.json: is not JSON",
        "    old4",
        "",
        "1 node fails to compile as before:",
        "  y.pp:3: no data",
    ]
    assert lines[-1] == "37 catalogs compiled, 2,371 from the cache, 6.2 s"


def test_a_group_shows_nodes_changes_and_texts() -> None:
    text = plain(usual())
    _, _, rest = text.partition("26 nodes (role=web)  web01.example.com, web02")
    block = rest.partition("\n\n")[0].splitlines()
    assert block[1:6] == [
        "  ~ File[/etc/nginx/nginx.conf]",
        "      content:",
        "  @@ -3,8 +3,9 @@",
        "       server 10.0.0.2:8080;",
        "       server 10.0.0.3:8080;",
    ]
    assert block[block.index("  -   mode => 0644") + 1] == "  +   mode => 0640"
    assert "  ~   content => (sensitive)" in block
    assert block[-2:] == [
        "  + Service[nginx-exporter]",
        "  + Package[nginx] notifies File[/etc/nginx/nginx.conf]",
    ]


@pytest.mark.parametrize("form", [plain, preview_markdown, preview_html])
def test_a_group_says_that_its_nodes_did_not_compile_before(
    form: Callable[[PreviewResult], str],
) -> None:
    first, second = usual().groups
    result = replace(usual(), groups=(first, replace(second, fixed=True)))
    assert "5 nodes that did not compile before" in form(result)
    assert "1,172 unaffected, 26 change, 3 fail" in form(result)
    assert [one["fixed"] for one in result.to_dict()["groups"]] == [False, True]


def test_a_final_line_break_is_shown_only_if_one_value_lacks_it() -> None:
    for before, after, shown in (
        ("old\n", "new\n", "  -   content => old"),
        ("old\n", "new", "  -   content => old\\x0a"),
    ):
        change = CatalogDifference(resources=(changed("/etc/banner", content=(before, after)),))
        result = replace(usual(), groups=(group(change, "a.example.com"),))
        assert shown in plain(result).splitlines()


def test_a_commit_id_as_the_name_of_a_revision_is_shortened() -> None:
    assert BASE.commit is not None
    result = replace(usual(), base=replace(BASE, name=BASE.commit))
    assert plain(result).splitlines()[1] == "3f2a1c9d0b1e → HEAD (8be0c2d1e3f4)"


def test_nodes_that_may_differ_for_one_reason_share_a_row() -> None:
    impure = [ImpureNode(node=f"web{n}", reasons=("reads the time",)) for n in (1, 2)]
    other = ImpureNode(node="db1", reasons=("reads the time", "uses a random number"))
    text = plain(replace(usual(), impure=(*impure, other)))
    _, _, rest = text.partition("May differ from run to run, whatever the change:\n")
    assert rest.splitlines()[:4] == [
        "  reads the time",
        "    web1, web2",
        "  reads the time; uses a random number",
        "    db1",
    ]


def test_user_text_has_no_effect_on_a_terminal() -> None:
    text = plain(hostile())
    assert text.isascii() or not {"\x1b", "\x07", "\u202e"} & set(text)
    assert max(map(len, text.splitlines())) < 2_000


def test_a_large_preview_is_bounded_and_counts_omitted_parts() -> None:
    text = plain(large(nodes=1_000, groups=100))
    assert "and 75 more groups with 750 nodes" in text
    assert "and 80 more errors; --json and --html show all" in text
    assert len(text.splitlines()) < 3_000


def test_long_values_are_shown_around_their_first_difference() -> None:
    before, after = "z" * 5_000 + "before" + "b" * 500, "z" * 5_000 + "after" + "b" * 500
    only = CatalogDifference(resources=(changed("/a", content=(before, after)),))
    text = plain(PreviewResult(base=BASE, head=HEAD, nodes=1, groups=(group(only, "web01"),)))
    lines = [line for line in text.splitlines() if "content =>" in line]
    assert ["zbefore" in lines[0], "zafter" in lines[1]] == [True, True]
    assert max(map(len, lines)) < 300


@pytest.mark.parametrize("after", ["x" * 199 + "y" * 50, " " * 300 + "; curl example.com"])
def test_what_is_cut_of_a_value_is_counted(after: str) -> None:
    only = CatalogDifference(resources=(changed("/a", content=("", after)),))
    text = plain(PreviewResult(base=BASE, head=HEAD, nodes=1, groups=(group(only, "web01"),)))
    assert re.search(r"… \d+ more characters$", text, re.MULTILINE)


@pytest.mark.parametrize("code", [0xA0, 0xAD, 0x200B, 0x2800, 0x3000, 0x3164, 0xFE0F, 0xE0041])
def test_texts_that_differ_look_different(code: int) -> None:
    """A blank of another kind, or a character that nothing draws, could hide a change."""
    only = CatalogDifference(resources=(changed("/a", mode=("0644", f"0644{chr(code)}")),))
    text = plain(PreviewResult(base=BASE, head=HEAD, nodes=1, groups=(group(only, "web01"),)))
    assert chr(code) not in text
    assert re.search(rf"mode => 0644\\\w0*{code:x}$", text, re.MULTILINE)


def test_a_value_with_other_bytes_under_its_number_is_a_warning() -> None:
    """A preview cannot open it, so it may be another one."""
    result = PreviewResult(
        base=BASE, head=HEAD, nodes=1, resealed=(ResealedGroup(group="role=db", values=2),)
    )
    (notice,) = notices(result)
    assert (notice.kind, [row.label for row in notice.rows]) == (WARNING, ["role=db"])
    assert "or other values" in notice.title


def test_a_preview_without_changes_is_short() -> None:
    assert plain(PreviewResult(base=BASE, head=HEAD, nodes=1, shard="2/8")).splitlines() == [
        "1 node: 1 unaffected",
        "main (3f2a1c9d0b1e) → HEAD (8be0c2d1e3f4), part 2/8 of the nodes",
        "",
        "0 catalogs compiled, 0 from the cache, 0.0 s",
    ]
