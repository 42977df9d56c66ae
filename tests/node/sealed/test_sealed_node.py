"""Sealed values on a node outside of its runs: trials, lookups, staging; and a node without any."""

import subprocess
import sys

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.app import NodeApp
from tests.rigs.node import REPOSITORY, Node
from tests.rigs.sealed import Sealing

LOADED = """
import sys
from localpuppet.node.app import NodeApp
from tests.node.test_app import apply
assert apply(NodeApp(sys.argv[1])).good
print([name for name in sys.modules if "node.sealed" in name or name == "pyrage"])
"""


def test_a_work_tree_is_tried_with_placeholders_and_never_applied_with_them(node: Node) -> None:
    sealing = Sealing.on(node)
    sealing.set("common/db::plain", "the plain secret", type="plain", number=4)
    sealing.code("notify { 'x': message => lookup('db::plain') }")
    tree = str(sealing.directory)
    refused = node.run("try", tree, code=2)
    assert "has sealed values, which a node opens in releases only" in refused.err
    tried = node.run("try", tree, "--noop", code=0)
    assert "[sealed common/db::plain, number 4]" in tried.out
    looked_up = node.run("lookup", "db::plain")
    assert looked_up.out == "[sealed common/db::plain, number 4]\n", looked_up.err


def test_staging_opens_the_groups_that_name_the_node(node: Node) -> None:
    sealing = Sealing.on(node)
    app = NodeApp(str(node.root))
    release = app.resolve(ReleasePath("app/tags/r1"))
    assert app.open_sealed_groups(release) == ()
    sealing.group("role=db")
    sealing.group("role=web", member=False)
    assert app.open_sealed_groups(release) == ("role=db",)
    sealing.group("role=web", member=False, name=app.require_puppet().settings["certname"])
    with pytest.raises(InvalidInputError, match="role=web: this node is a member, and its key"):
        app.open_sealed_groups(release)


def test_a_run_warns_of_sealed_values_from_a_source_without_signatures(node: Node) -> None:
    sealing = Sealing.on(node)
    unsealed = node.run("apply")
    sealing.set("common/a", "a secret")
    sealed = node.run("apply")
    warning = "its source does not require signatures"
    assert (unsealed.code, sealed.code) == (0, 0), sealed.err
    assert (warning in unsealed.err, warning in sealed.err) == (False, True)


def test_a_node_without_sealed_values_loads_nothing_for_them(node: Node) -> None:
    node.app("notify { 'x': }")
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(node.root)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
