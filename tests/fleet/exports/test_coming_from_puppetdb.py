"""Run the session of docs/migrate/puppetdb.md, and compare its output."""

from tests.fleet.exports.test_runs import applied
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.sessions import plain, session, typed

# The manifests that the page supposes.
MEMBER = """
define shop::member(Integer $port, Optional[String] $service = undef) {
  notify { "${service}: ${title}:${port}": }
}
"""
WEB = "@@shop::member { 'web01': port => 8080, tag => 'shop' }"
BALANCER = "Shop::Member <<| tag == 'shop' |>> { service => 'shop' }"

# A type as concat's: each fragment is a file.
FRAGMENT = """
define concat::fragment(String $target, String $content) {
  file { "${target}.${title}": content => $content }
}
"""


def give(member: Member, code: str) -> None:
    member.node.app(code, name="shop")
    member.node.write("modules/shop/trunk/shop/manifests/member.pp", MEMBER)
    (member.root / "policies").mkdir()


def test_the_session_is_true(fleet: Fleet) -> None:
    web, balancer = fleet.add("web01", "lb01", puppet=True)
    give(web, WEB)
    give(balancer, BALANCER)
    applied(web)
    node = balancer.node
    for _, command, said in session("migrate/puppetdb.md", ["lb01# "]):
        told = typed(node, command, root=node.root, directory=node.root)
        assert plain(told.splitlines()) == plain(said), command


def test_fragments_are_collected_with_the_lines_that_the_page_appends(fleet: Fleet) -> None:
    one, several, balancer = fleet.add("web01", "web02", "lb01", puppet=True)
    target = balancer.root / "lb.cfg"
    contents = [(one, "server web01\\n"), (several, "server web02\\n  check\\n")]
    for member, content in contents:
        body = f'target => "{target}", content => "{content}"'
        code = f'@@concat::fragment {{ "{member.name}": {body} }}'
        member.node.app(code)
        member.node.write("modules/app/trunk/concat/manifests/fragment.pp", FRAGMENT)
        applied(member)
    balancer.node.app(f"Concat::Fragment <<| |>> {{ target => '{target}' }}")
    balancer.node.write("modules/app/trunk/concat/manifests/fragment.pp", FRAGMENT)
    assert balancer.run("apply").code == 1  # no line yet
    proposed = balancer.run("inventory", "exports", "--policy").out
    assert f"# guarded leaves out Concat::Fragment[{several.name}] of {several.name}" in proposed
    balancer.node.write("policies/collect.policy", proposed)
    done = applied(balancer)
    assert "is left out" not in done.out
    for member, content in contents:
        file = balancer.root / f"lb.cfg.{member.name}"
        assert file.read_text() == content.replace("\\n", "\n")
