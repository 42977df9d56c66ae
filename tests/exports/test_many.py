"""5,000 resources of one node, from a real Puppet to a real Puppet."""

from tests.exports.test_runs import applied, exports, recorded
from tests.rigs.fleet import Fleet

MANY = 5000


def test_thousands_of_resources_of_one_node(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b", puppet=True)
    a.node.app(f"Integer[1, {MANY}].each |$n| {{ @@schedule {{ \"s${{n}}\": tag => 'all' }} }}")
    applied(a)
    assert len(exports(b)) == MANY
    # A schedule is only declared: what takes the time is ours, and the compiler's.
    b.node.app("Schedule <<| tag == 'all' |>> { period => hourly }")
    b.node.write("policies/collect.policy", f"{a.name}\tSchedule\ts*\n")
    applied(b)
    (collected,) = recorded(b, "collected.json")["collectors"]
    assert len(collected["resources"]) == MANY
    assert {tuple(one["dropped"]) for one in collected["resources"]} == {("tag",)}
    catalog = (b.node.state / "runs" / b.node.runs()[-1] / "report.json").read_text()
    assert catalog.count('"resource_type":"Schedule"') >= MANY
