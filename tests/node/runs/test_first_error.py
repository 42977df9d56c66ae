"""The first error of a real Puppet is the cause of a failed run."""

from typing import Any

import pytest

from tests.rigs.node import Node

CAUSES = {
    # Code of the class → the complete error, and the part that leaves the node.
    "unknown class": (
        "include no_such",
        "Could not find class ::no_such",
        "Could not find class … for …",
    ),
    "two syntax problems": (
        "if true { 'a' }\n'b'\n$c = 1",
        "This 'if' statement has no effect",
        "This … statement has no …. A value was produced and …"
        " (one or more … may have the wrong form)",
    ),
    "after err()": (
        "err('only a remark')\nfail('on purpose')",
        "on purpose",
        "on …",
    ),
    "resource": (
        "exec { '/bin/false': } -> exec { '/bin/no-such': }",
        "Exec[/bin/false] (app/manifests/init.pp:2)",
        "… returned … instead of one of …",
    ),
}


def failed(node: Node, code: str) -> dict[str, Any]:
    node.app(code)
    assert node.run("apply").code == 1
    return node.status()


@pytest.mark.parametrize("name", CAUSES)
def test_the_first_error_is_the_cause(node: Node, name: str) -> None:
    code, error, words = CAUSES[name]
    status = failed(node, code)
    assert error in status["reason"]
    assert status["failure_cause"]["error"] == words
    for verb in ("status", "history", "report", "why"):
        assert error in node.run(verb).out, verb


def test_the_report_of_a_run_without_one_shows_puppets_first_errors(node: Node) -> None:
    status = failed(node, "err('the same')\n" * 3 + "fail('on purpose')")
    report = node.run("report")
    assert report.code == 1
    assert "no report of this run: Puppet wrote none" in report.out
    assert "(×3)" in report.out
    assert report.out.count("on purpose") == 2  # in the reason and in Puppet's line
    cure = f"'localpuppet logs {status['id']}' shows Puppet's output"
    assert cure in node.run("status").out
    assert "in a row" not in node.run("status").out
    assert cure in node.run("history").out
    assert node.run("apply").code == 1
    assert ", 2 runs in a row" in node.run("status").out
