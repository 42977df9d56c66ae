"""A catalog that does not compile: one error of Puppet, with file and line in the release."""

import pytest

from tests.rigs.forge import Forge, make
from tests.rigs.node import Node

FAILS = "class {} {{\n  notify {{ 'x': }}\n  fail('{}')\n}}\n"
LONG = "a reason of many words " * 20
# Class → the place that Puppet's error names.
PLACES = {
    "web": "web/manifests/init.pp, line: 3",
    "ntp": "ntp/manifests/init.pp, line: 3",
    "platform": "dist/platform/manifests/init.pp, line: 3",
}


@pytest.fixture
def broken(site: Node, forge: Forge) -> Node:
    """A node with release r2, whose classes all fail."""
    forge.repo("dist").commit({"platform/manifests/init.pp": FAILS.format("platform", LONG)}, "r8")
    forge.repo("ntp").commit({"manifests/init.pp": FAILS.format("ntp", LONG)}, "v2")
    ntp = forge.repo("ntp").url
    web = forge.repo("web")
    web.write(
        {
            "manifest.yaml": "modulepath: [dist/tags/r8]\n"
            f"modules: {{ntp: {{git: '{ntp}', tag: v2}}}}\n",
            "web/manifests/init.pp": FAILS.format("web", LONG),
        }
    )
    make(site, "lock", str(web.path), code=0)
    web.commit({}, "r2")
    return site


@pytest.mark.parametrize("name", PLACES)
def test_a_run_shows_an_error_once_with_its_place_in_the_release(broken: Node, name: str) -> None:
    broken.write("input.yaml", f"app: web/tags/r2\nclasses: [{name}]\n")
    done = broken.run("apply", code=1)
    assert done.out.count(LONG.strip()) == 1
    assert f"(file: {PLACES[name]}" in done.out
    assert done.out.splitlines()[-1].startswith("# failed, ")
    status = broken.status()
    assert f"(file: {PLACES[name]}" in status["reason"]
    assert LONG.strip() in status["reason"]
    assert status["failure_cause"]["place"] == f"{name}/manifests/init.pp:3"
    log = broken.run("logs").out
    assert f"(file: {PLACES[name]}" in log
    assert "/releases/" not in log


def test_other_commands_also_name_the_place(broken: Node) -> None:
    input_file = broken.write("input.yaml", "app: web/tags/r2\nclasses: [web]\n")
    verbs = (
        ["release", "diff", "web/tags/r1", "web/tags/r2", "--catalog", str(input_file)],
        ["lookup", "key"],
    )
    for words in verbs:
        refused = broken.run(*words, code=2)
        (line,) = [line for line in refused.err.splitlines() if "error: " in line]
        assert f"(file: {PLACES['web']}" in line
        assert ": Error: " not in line
        assert "/releases/" not in line
