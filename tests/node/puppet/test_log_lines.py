"""Lines of Puppet's output that show the contents of files."""

from pathlib import Path

import pytest

from localpuppet.node.puppet.changes import Diffs
from tests.rigs.node import Node

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
