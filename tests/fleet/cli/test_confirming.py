"""Commands that are hard to undo: they ask on a terminal, and need `--yes` without one."""

import pytest

from tests.rigs.node import Node
from tests.rigs.terminal import in_terminal


@pytest.fixture
def alice(node: Node) -> Node:
    node.settings(bus="sqlite", node="web01.example.com")
    node.run("keys", "init", code=0)
    public = node.write("alice.pem", node.run("keys", "show").out)
    node.run("keys", "trust", "alice", str(public), code=0)
    return node


def pinned(node: Node) -> bool:
    return "alice" in node.run("keys", "list").out


def test_without_a_terminal_the_command_requires_yes(alice: Node) -> None:
    refused = alice.run("keys", "revoke", "alice")
    assert (refused.code, refused.out) == (2, "")
    assert "cannot remove the pinned key of alice without a confirmation: pass --yes" in refused.err
    assert pinned(alice)
    alice.run("keys", "revoke", "alice", "--yes", code=0)
    assert not pinned(alice)


def test_on_a_terminal_the_answer_decides(alice: Node) -> None:
    refused = in_terminal(alice, "keys", "revoke", "alice", typed="n\n")
    assert refused.code == 1
    assert "remove the pinned key of alice? [y/N]:" in refused.out
    assert "nothing changed" in refused.out
    assert pinned(alice)
    assert in_terminal(alice, "keys", "revoke", "alice", typed="y\n").code == 0
    assert not pinned(alice)


def test_a_dry_run_shows_what_would_change(alice: Node) -> None:
    shown = alice.run("keys", "revoke", "alice", "--dry-run")
    assert (shown.code, shown.out) == (0, "would remove the pinned key of alice\n")
    assert pinned(alice)
    forget = ("inventory", "forget", "old.example.com")
    done = alice.run(*forget, "--dry-run")
    expected = "would remove the entry of old.example.com from the inventory of all nodes\n"
    assert done.out == expected
    alice.run(*forget, code=2)
    assert in_terminal(alice, *forget, typed="\n").code == 1
