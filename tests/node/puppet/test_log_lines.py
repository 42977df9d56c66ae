"""Which lines of Puppet's output are the contents of files."""

from pathlib import Path

import pytest

from localpuppet.node.puppet.log_lines import Diffs
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


def test_a_diff_is_left_out_and_nothing_else() -> None:
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
def test_a_diff_of_a_format_of_its_own_ends_with_its_own_resource(first: str) -> None:
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


def test_a_provider_that_shows_a_diff() -> None:
    lines = [
        "Notice: Augeas[x](provider=augeas): ",
        "--- /etc/hosts",
        "+secret",
        "Notice: /Stage[main]/Main/Augeas[x]/returns: executed successfully",
    ]
    assert list(Diffs().without(lines)) == [lines[0], lines[3]]


@pytest.mark.parametrize("line", ["Notice: ", "Notice: members:", "Error: a: b: ", "# puppet x: "])
def test_a_message_that_only_looks_so_hides_nothing(line: str) -> None:
    assert list(Diffs().without([line, "x", "Notice: y"])) == [line, "x", "Notice: y"]


def test_what_puppet_itself_prints(node: Node, tmp_path: Path) -> None:
    """Puppet's own form of a diff, as it is today."""
    file = tmp_path / "file"
    file.write_text("old secret\nNotice: old secret\n")
    node.app(f"file {{ '{file}': content => \"new secret\\nNotice: new secret\\n\" }}")
    done = node.run("apply", "--", "--show_diff")
    assert "new secret" in done.out, done.err
    log = next(node.state.glob("runs/*/log")).read_text()
    assert "old secret" in log
    told = "\n".join(Diffs().without(log.splitlines()))
    assert "secret" not in told
    assert "content changed" in told
