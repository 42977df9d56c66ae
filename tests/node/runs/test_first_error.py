"""The first error of a real Puppet is the cause of a failed run."""

import json
from collections.abc import Iterator

import pytest

from tests.rigs.long import with_sample
from tests.rigs.node import Node, make_node

# Code of the class → a part of the complete error, and what leaves the node. Another class of the
# same module has a parameter, and nothing of what leaves the node is a value.
CAUSES = {
    "unknown class": (
        "include no_such",
        "Could not find class ::no_such",
        "Could not find class ::no_such for …",
    ),
    "interpolated class": (
        "$pw = 'hunter2'\ninclude \"no_${pw}\"",
        "Could not find class ::no_hunter2",
        "Could not find class … for …",
    ),
    "unknown function": (
        "notice(app::no_such('hunter2'))",
        "Unknown function: 'app::no_such'",
        "Unknown function: 'app::no_such'",
    ),
    "unknown variable": (
        'notice("hunter2 ${no_such}")',
        "Unknown variable: 'no_such'",
        "Unknown variable: 'no_such'",
    ),
    "unknown type": (
        "no_such { 'hunter2': }",
        "Unknown resource type: 'no_such'",
        "Unknown resource type: 'no_such'",
    ),
    "missing template": (
        "notice(template('app/no_such.erb'))",
        "Could not find template 'app/no_such.erb'",
        "Could not find template 'app/no_such.erb'",
    ),
    "missing source": (
        "file { '/srv/x': source => 'puppet:///modules/app/no_such' }",
        "puppet:///modules/app/no_such",
        "Could not retrieve information from environment production …"
        " puppet:///modules/app/no_such",
    ),
    "wrong type": (
        "class { 'app::other': bits => 'hunter2' }",
        "parameter 'bits' expects an Integer value",
        "Class[App::Other]: parameter 'bits' expects an Integer value, got String",
    ),
    "missing parameter": (
        "include app::other",
        "expects a value for parameter 'bits'",
        "Class[App::Other]: expects a value for parameter 'bits'",
    ),
    "duplicate": (
        "notify { '/srv/x': }\nnotify { '/srv/x': message => 'hunter2' }",
        "Duplicate declaration: Notify[/srv/x]",
        "Duplicate declaration: Notify[/srv/x] is already declared at …; cannot redeclare",
    ),
    "unknown dependency": (
        "notify { 'x': require => Package['nginx'] }",
        "Could not find resource 'Package[nginx]'",
        "Could not find resource 'Package[nginx]' in parameter 'require'",
    ),
    "cycle": (
        "notify { 'a': require => Notify['b'] }\nnotify { 'b': require => Notify['a'] }",
        "Found 1 dependency cycle",
        "resource is part of a dependency cycle",
    ),
    "operator": (
        "notice('hunter2' + 1)",
        "The value 'hunter2' cannot be converted to Numeric",
        "The value … cannot be converted to Numeric",
    ),
    "two syntax problems": (
        "if true { 'a' }\n'b'\n$c = 1",
        "This 'if' statement has no effect",
        "This … statement has no …. A value was produced and …"
        " (one or more … may have the wrong form)",
    ),
    "after err()": ("err('only a remark')\nfail('on purpose')", "on purpose", "on …"),
    "words of Puppet in a string": (
        "$pw = 'hunter2'\nfail(\"Unknown variable: '${pw}'\")",
        "Unknown variable: 'hunter2'",
        "Unknown variable: …",
    ),
    "lookup": (
        "$pw = 'hunter2'\nnotice(lookup('app::no_such'))",
        "did not find a value for the name 'app::no_such'",
        "Function lookup() did not find a value for the name 'app::no_such'",
    ),
    "interpolated lookup": (
        "$pw = 'hunter2'\nnotice(lookup(\"app::${pw}\"))",
        "did not find a value for the name 'app::hunter2'",
        "Function lookup() did not find a value for the name …",
    ),
    "words of a lookup in a string": (
        "$pw = 'hunter2'\nfail(\"Function lookup() did not find a value for the name '${pw}'\")",
        "did not find a value for the name 'hunter2'",
        "Function lookup() did not find a value for the name …",
    ),
    "resource": (
        "exec { '/bin/false': } -> exec { '/bin/no-such': }",
        "Exec[/bin/false] (app/manifests/init.pp:2)",
        "… returned 1 instead of one of [0]",
    ),
}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, puppet_probe: str) -> Iterator[Node]:
    """A node whose Puppet refuses unknown variables; a run of it says nothing of earlier ones."""
    made = make_node(tmp_path_factory.mktemp("strict"), puppet_probe)
    made.write("puppet/conf/puppet.conf", "[main]\nstrict_variables = true\n")
    made.write("modules/app/trunk/app/manifests/other.pp", "class app::other(Integer $bits) {}\n")
    yield made
    made.end()


# The messages themselves are in `tests/node/puppet/test_fault.py`, as Puppet 7 wrote them.
SAMPLE = (
    *("interpolated class", "unknown dependency", "cycle", "two syntax problems", "after err()"),
    *("interpolated lookup", "resource"),
)


@pytest.mark.parametrize("name", with_sample(CAUSES, *SAMPLE))
def test_the_first_error_is_the_cause(strict: Node, name: str) -> None:
    code, error, words = CAUSES[name]
    strict.app(code)
    strict.run("apply", code=1)
    status = strict.status()
    assert error in status["reason"]
    assert status["failure_cause"]["error"] == words
    assert "hunter2" not in str(status["failure_cause"])


def test_each_view_of_a_failed_run_shows_its_error(node: Node) -> None:
    node.app("include no_such")
    node.run("apply", code=1)
    for verb in ("status", "history", "report", "why"):
        assert "Could not find class ::no_such" in node.run(verb).out, verb


def test_a_class_that_only_the_enc_names_is_named(node: Node) -> None:
    node.app("notice('x')")
    given = {"app": "app/trunk", "classes": {"no_such::thing": {}, "app": None}}
    node.write("input.yaml", json.dumps(given))
    node.run("apply", code=1)
    error = node.status()["failure_cause"]["error"]
    assert error == "Could not find class no_such::thing for …"


def test_the_report_of_a_run_without_one_shows_puppets_first_errors(node: Node) -> None:
    node.app("err('the same')\n" * 3 + "fail('on purpose')")
    node.run("apply", code=1)
    status = node.status()
    report = node.run("report", code=1)
    answer = node.run("report", "--json", code=1).json
    assert (answer["report"], answer["failed"]) == (False, [])
    assert "no report of this run: Puppet wrote none" in report.out
    assert "(×3)" in report.out
    assert report.out.count("on purpose") == 2  # in the reason and in Puppet's line
    cure = f"'localpuppet logs {status['id']}' shows Puppet's output"
    assert cure in node.run("status").out
    assert "in a row" not in node.run("status").out
    assert cure in node.run("history").out
    node.run("apply", code=1)
    assert ", 2 runs in a row" in node.run("status").out
