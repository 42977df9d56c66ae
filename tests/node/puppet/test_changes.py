"""The changes that a noop run predicts: which events count, and what their marks cover."""

import json
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.puppet.changes import (
    MAX_CHANGES,
    Diffs,
    PredictedChanges,
    PropertyChange,
    foreseen,
    key_of,
    parse_salt,
    together,
)
from tests.rigs.node import Node

KEY = key_of(b"s" * 32, "5a" * 16)


def event(old: Any, new: Any, *, status: str = "noop", name: str = "mode") -> dict[str, Any]:
    return {"property": name, "status": status, "previous_value": old, "desired_value": new}


def report(**resources: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "resource_statuses": {
            f"File[/{title}]": {"resource_type": "File", "title": f"/{title}", "events": events}
            for title, events in resources.items()
        }
    }


def marks(raw: dict[str, Any], key: bytes = KEY) -> list[str]:
    return [one.mark for one in foreseen(raw, release="r", key=key).changes]


def test_predicted_changes_cover_noop_events_only_and_have_no_values() -> None:
    raw = report(
        b=[event("0644", "0600"), event("a", "b", status="success", name="owner")],
        a=[event(None, ["secret"], name="content")],
        c=[],
    )
    found = foreseen(raw, release="shop/tags/r7", key=KEY)
    assert [str(one) for one in found.changes] == ["File[/a] content", "File[/b] mode"]
    assert (found.release, found.total, found.whole) == ("shop/tags/r7", 2, True)
    text = json.dumps(found.to_dict())
    assert "secret" not in text
    assert "0600" not in text
    assert PredictedChanges.read(json.loads(text)) == found


def test_a_mark_covers_resource_property_both_values_and_the_key() -> None:
    first = marks(report(a=[event("0644", "0600")]))
    assert marks(report(a=[event("0644", "0600")])) == first
    others = [
        marks(report(b=[event("0644", "0600")])),
        marks(report(a=[event("0644", "0600", name="owner")])),
        marks(report(a=[event("0640", "0600")])),
        marks(report(a=[event("0644", "0601")])),
        marks(report(a=[event("0644", ["0600"])])),
        marks(report(a=[event("0644", "0600")]), key_of(b"s" * 32, "5b" * 16)),
        marks(report(a=[event("0644", "0600")]), key_of(b"t" * 32, "5a" * 16)),
    ]
    assert len({str(one) for one in [first, *others]}) == 8


def test_too_many_changes_are_counted_but_not_listed() -> None:
    many = {f"f{number}": [event("a", "b")] for number in range(MAX_CHANGES + 1)}
    found = foreseen(report(**many), release="r", key=KEY)
    assert (found.total, found.changes, found.whole) == (MAX_CHANGES + 1, (), False)
    long = {"x" * 900 + str(number): [event("a", "b")] for number in range(600)}
    assert foreseen(report(**long), release="r", key=KEY).changes == ()


def test_the_changes_of_two_runs_are_listed_once() -> None:
    one = foreseen(report(a=[event("a", "b")]), release="r1", key=KEY)
    two = foreseen(report(a=[event("a", "b")], b=[event("a", "b")]), release="r2", key=KEY)
    assert together(None, one) == one
    both = together(one, two)
    assert (both.release, both.total, both.changes) == ("r2", 2, two.changes)
    many = {f"f{number}": [event("a", "b")] for number in range(MAX_CHANGES)}
    most = foreseen(report(**many), release="r1", key=KEY)
    assert most.whole
    both = together(most, one)
    assert (both.total, both.changes) == (MAX_CHANGES + 1, ()), "as with one run that has too many"


@pytest.mark.parametrize(
    "raw",
    [
        {"release": "r", "total": 0, "changes": [["File", "/a", "mode", "00"]]},
        {"release": "r", "total": 1, "changes": [["File", "/a", "mode", "00"]]},
        {"release": "r", "total": 1, "changes": [["File", "/a", 3, "0" * 32]]},
        {"release": "r", "total": 1, "changes": ["File"]},
        {"release": "r", "total": True, "changes": []},
        {"release": 7, "total": 0, "changes": []},
        {"total": 0, "changes": []},
        {"release": "r", "total": 5000, "changes": [["F", "/a", "m", "0" * 32]] * 1001},
    ],
)
def test_invalid_changes_of_a_node_are_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="changes"):
        PredictedChanges.read(raw)


def test_control_characters_in_titles_are_escaped() -> None:
    raw = {"release": "r", "total": 1, "changes": [["File", "a\x1b[2J\nb", "m", "0" * 32]]}
    (found,) = PredictedChanges.read(raw).changes
    assert found == PropertyChange(
        type="File", title="a\\x1b[2J\\x0ab", property="m", mark="0" * 32
    )
    with pytest.raises(InvalidInputError):
        parse_salt("5A" * 16)
    with pytest.raises(ValueError, match="not a Puppet report"):
        foreseen(
            {"resource_statuses": {"x": {"events": [{"status": "noop"}]}}}, release="r", key=KEY
        )


SOURCE = "/Stage[main]/Main/File[/etc/motd]/content"
HEAD = f"Notice: {SOURCE}: "
UNIFIED = f"""Notice: before
{HEAD}
--- /etc/motd
+++ /tmp/puppet-file
@@ -1,2 +1,2 @@
-Notice: secret
+secret
\\ No newline at end of file

Notice: {SOURCE}: content changed 'a' to 'b'
Info: after
more of that""".splitlines()


def test_only_a_diff_is_left_out() -> None:
    assert list(Diffs().without(UNIFIED)) == [
        "Notice: before",
        f"Notice: {SOURCE}: ",
        f"Notice: {SOURCE}: content changed 'a' to 'b'",
        "Info: after",
        "more of that",
    ]


@pytest.mark.parametrize(
    "first", ["Notice: secret   | Notice: other", "< secret", "1c1", "Notice: x: --- secret", ""]
)
def test_a_diff_in_an_unknown_format_ends_at_the_next_line_of_its_resource(first: str) -> None:
    lines = [
        f"Info: {SOURCE}: ",
        first,
        "Notice: secret",
        "--- secret",
        "Error: /Stage[main]/Main/File[/etc/other]/content: secret",
        f"Error: {SOURCE}: change from 'a' to 'b' failed",
        "Notice: after",
    ]
    assert list(Diffs().without(lines)) == [lines[0], *lines[-2:]]


def test_a_diff_of_a_provider_is_left_out() -> None:
    lines = [
        "Notice: Augeas[x](provider=augeas): ",
        "--- /etc/hosts",
        "+secret",
        "Notice: /Stage[main]/Main/Augeas[x]/returns: executed successfully",
    ]
    assert list(Diffs().without(lines)) == [lines[0], lines[3]]


@pytest.mark.parametrize("line", ["Notice: ", "Notice: members:", "Error: a: b: ", "# puppet x: "])
def test_an_empty_message_that_is_not_the_head_of_a_diff_hides_no_line(line: str) -> None:
    assert list(Diffs().without([line, "x", "Notice: y"])) == [line, "x", "Notice: y"]


def test_a_diff_of_the_real_puppet_is_left_out(node: Node, tmp_path: Path) -> None:
    """The current format of Puppet's diffs."""
    file = tmp_path / "file"
    file.write_text("old secret\nNotice: old secret\n")
    node.app(f"file {{ '{file}': content => \"new secret\\nNotice: new secret\\n\" }}")
    done = node.run("apply", "--", "--show_diff")
    assert "new secret" in done.out, done.err
    log = next(node.state.glob("runs/*/log")).read_text()
    assert "old secret" in log
    shown = "\n".join(Diffs().without(log.splitlines()))
    assert "secret" not in shown
    assert "content changed" in shown
