"""The session in docs/coming-from-puppetdb.md is true: it is run here, and says what is there."""

from tests.exports.test_runs import applied
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
    for _, command, said in session("coming-from-puppetdb.md", ["lb01# "]):
        told = typed(node, command, root=node.root, directory=node.root)
        assert plain(told.splitlines()) == plain(said), command
