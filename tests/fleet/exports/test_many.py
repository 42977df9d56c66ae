"""5,000 resources of one node, from a real Puppet to a real Puppet that takes a part of them."""

from tests.fleet.exports.test_runs import applied, recorded
from tests.rigs.fleet import Fleet

MANY = 5000
TAKEN = 1000
EXPORTING = f"""
Integer[1, {MANY}].each |$n| {{
  $tag = $n ? {{ Integer[1, {TAKEN}] => 'first', default => 'other' }}
  @@app::known {{ "k${{n}}": port => $n, tag => $tag }}
}}
"""


def test_thousands_of_resources_of_a_node_are_exported_and_collected(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b", puppet=True)
    for member, code in ((a, EXPORTING), (b, "App::Known <<| tag == 'first' |>> { on => 'b' }")):
        member.node.app(code)
        known = "define app::known(Integer $port, $on = undef) { }"
        member.node.write("modules/app/trunk/app/manifests/known.pp", known)
    b.node.write("policies/collect.policy", f"{a.name}\tApp::Known\tk*\n")
    applied(a)
    assert len(recorded(a, "exports.json")["resources"]) == MANY
    applied(b)
    (collected,) = recorded(b, "collected.json")["collectors"]
    refs = {one["resource"] for one in collected["resources"]}
    assert refs == {f"App::Known[k{number}]" for number in range(1, TAKEN + 1)}
