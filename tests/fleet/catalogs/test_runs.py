"""The catalog of a real run: kept, published, sent on request, and without its secrets."""

import asyncio

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet import kept_catalogs
from localpuppet.fleet.bus.layout import catalogs_of
from localpuppet.fleet.inventory.entry import CatalogSummary
from localpuppet.fleet.inventory.outbox import Outbox
from localpuppet.fleet.requests.request_client import RequestClient
from localpuppet.fleet.trust.key_files import TrustedKeys
from localpuppet.fleet.trust.signing import MessageSigner, Verifier
from localpuppet.node.puppet.catalog import CanonicalCatalog
from tests.fleet.exports.test_runs import applied
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.waiting import PATIENCE

RIGHT = "policy default deny\nallow\tchoria={who}\tcatalog\t*\t*\n"
CODE = """
  $secret = Sensitive('CANARY-one')
  app::vault { 'vault':
    password => $secret,
    options  => { 'deep' => [Sensitive('CANARY-two')], 'port' => 5432 },
    late     => Deferred('new', [String, 'CANARY-three']),
    key      => Sensitive($key),
  }
  file { '@FILE@': content => Sensitive('CANARY-four'), require => Notify['shown'] }
  notify { 'shown': }
"""
VAULT = """
define app::vault($password, $options, $late, $key) {
  notify { "vault ${title}": }
}
"""


def vault(member: Member) -> None:
    """Give a node a catalog with a secret wherever one can be."""
    member.node.app("", key="CANARY-five")
    code = CODE.replace("@FILE@", str(member.root / "secret"))
    member.node.write(
        "modules/app/trunk/app/manifests/init.pp", f"class app(String $key) {{ {code} }}"
    )
    member.node.write("modules/app/trunk/app/manifests/vault.pp", VAULT)


def ask(fleet: Fleet, caller: Member, node: Member) -> kept_catalogs.NodeCatalog:
    async def work() -> kept_catalogs.NodeCatalog:
        async with fleet.bus.open() as kv:
            client = RequestClient(
                kv,
                signer=MessageSigner(SignerName(caller.name), caller.key.load()),
                verifier=Verifier(TrustedKeys(caller.root / "trusted"), None, SystemClock()),
                clock=SystemClock(),
            )
            return await kept_catalogs.ask_catalog(client, NodeName(node.name), patience=PATIENCE)

    return asyncio.run(work())


def refused(fleet: Fleet, caller: Member, node: Member) -> str:
    try:
        ask(fleet, caller, node)
    except UnavailableError as error:
        return str(error)
    raise AssertionError("it was answered")


def chunks(fleet: Fleet, member: Member) -> list[bytes]:
    async def work() -> list[bytes]:
        async with fleet.bus.open() as kv:
            return [entry.value for entry in (await kv.list(catalogs_of(member.name))).entries]

    return asyncio.run(work())


def kept_by(member: Member) -> tuple[kept_catalogs.CatalogHeader, CanonicalCatalog]:
    keeper = kept_catalogs.CatalogKeeper(member.node.state)
    header = keeper.header()
    return header, kept_catalogs.unpack_catalog(keeper.outbox.read(header.digest), node=member.name)


def test_a_catalog_is_kept_published_and_sent_without_its_secrets(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b", puppet=True, inventory={"catalogs": True})
    vault(a)
    applied(a)
    header, kept = kept_by(a)
    by_title = {one.title: one for one in kept.resources}
    assert by_title["vault"].parameters == {
        "password": {"__ptype": "Sensitive"},
        "options": {"deep": [{"__ptype": "Sensitive"}], "port": 5432},
        "late": {"__ptype": "Deferred"},
        "key": {"__ptype": "Sensitive"},
    }
    assert "app" in kept.classes
    # A class parameter is plain in the node document: the catalog hides its Sensitive copy only.
    assert by_title["App"].parameters == {"key": "CANARY-five"}
    assert kept.to_bytes().count(b"CANARY") == 1

    entry = Outbox(a.node.state).entry()
    assert entry is not None
    assert entry.catalog == CatalogSummary(
        digest=header.digest, size=header.size, resources=header.resources
    )
    (chunk,) = chunks(fleet, a)
    assert chunk.partition(b"\n")[0].decode() == header.digest

    fleet.start()
    assert "no policy" in refused(fleet, b, a)
    for default, rights in (("allow", "*"), ("deny", "report compile")):
        policy = f"policy default {default}\nallow\tchoria={b.name}\t{rights}\t*\t*\n"
        a.node.write("policies/puppet.policy", policy)
        assert "denied by policy line 1 (default)" in refused(fleet, b, a)
    a.node.write("policies/puppet.policy", RIGHT.format(who=b.name))
    b.node.write("policies/puppet.policy", RIGHT.format(who=a.name))
    told = ask(fleet, b, a)
    assert (told.header, told.catalog) == (header, kept)
    assert "keeps no catalog yet" in refused(fleet, a, b)

    secrets = [b"CANARY-%s" % word for word in (b"one", b"two", b"three", b"four")]
    manifest = a.root / "modules" / "app" / "trunk" / "app" / "manifests" / "init.pp"
    for path in (a.root / "var").rglob("*"):
        if path.is_file():
            assert not any(secret in path.read_bytes() for secret in secrets), path
    assert all(secret in manifest.read_bytes() for secret in secrets)
    assert "CANARY" not in a.log + b.log


def test_equal_catalogs_are_not_published_again_and_noop_runs_keep_none(fleet: Fleet) -> None:
    (a,) = fleet.add("a", puppet=True, inventory={"catalogs": True})
    a.node.app("notify { 'same': }")
    applied(a)
    before = kept_by(a)
    published = chunks(fleet, a)
    applied(a)
    after = kept_by(a)
    assert (after[0].digest, after[1]) == (before[0].digest, before[1])
    assert after[0].run != before[0].run
    assert chunks(fleet, a) == published
    a.node.app("notify { 'other': }")
    a.run("apply", "--noop", code=0)
    assert kept_by(a)[0].run == after[0].run, "a noop run applies no catalog"
