"""`localpuppet keys`, as operators meet it."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.certificates import Ca, pem, rsa_key, write
from tests.rigs.node import REPOSITORY, Node, completed, make_node
from tests.rigs.servers import NatsConfig, NatsServer
from tests.rigs.terminal import in_terminal
from tests.rigs.tls import Authority

PRINT = r"SHA256:[A-Za-z0-9+/]{43}"


@pytest.fixture
def web(node: Node) -> Node:
    node.settings(node="web01.example.com")
    return node


@pytest.fixture
def lb(tmp_path: Path, puppet_probe: str) -> Iterator[Node]:
    other = make_node(tmp_path / "lb", puppet_probe)
    other.settings(node="lb01.example.com")
    yield other
    other.end()


def test_the_key_of_another_node_is_pinned_listed_and_revoked(web: Node, lb: Node) -> None:
    made = web.run("keys", "init", code=0)
    found = re.match(rf"made the key of web01\.example\.com: ({PRINT})\n", made.out)
    assert found
    shown = web.run("keys", "show").out
    assert shown.startswith(f"# web01.example.com {found[1]}\n-----BEGIN PUBLIC KEY-----\n")
    trusted = lb.feed(shown, "keys", "trust", "web01.example.com", "-")
    assert trusted.out == f"trusts web01.example.com {found[1]}\n"
    again = lb.feed(shown, "keys", "trust", "web01.example.com", "-")
    assert (again.code, again.out) == (0, f"trusted already: web01.example.com {found[1]}\n")
    listed = lb.run("keys", "list").out.split()
    assert listed == ["NAME", "FINGERPRINT", "web01.example.com", found[1]]
    expected = "web01.example.com is no longer trusted\n"
    assert lb.run("keys", "revoke", "web01.example.com", "--yes").out == expected
    assert lb.run("keys", "list").out == "no key is pinned\n"


def test_every_verb_speaks_json(web: Node, lb: Node) -> None:
    made = web.run("keys", "init", "--json").json
    shown = web.run("keys", "show", "--json").json
    key = {"fingerprint": shown["fingerprint"], "file": str(web.state / "keys" / "node.pem")}
    assert made == {"schema": 1, "name": "web01.example.com", "sealing": made["sealing"], **key}
    assert (shown["schema"], shown["name"], shown["kind"]) == (1, "web01.example.com", "ed25519")
    file = web.write("public.pem", shown["pem"])
    trust = ["keys", "trust", "web01.example.com", str(file), "--json"]
    expected = {"schema": 1, "name": "web01.example.com", "fingerprint": made["fingerprint"]}
    assert lb.run(*trust).json == {**expected, "changed": True}
    assert lb.run(*trust).json == {**expected, "changed": False}
    listed = lb.run("keys", "list", "--json").json
    own = {"name": "web01.example.com", "fingerprint": made["fingerprint"]}
    assert listed == {"schema": 1, "trusted": [own]}
    revoked = lb.run("keys", "revoke", "web01.example.com", "--yes", "--json").json
    assert revoked == {"schema": 1, "name": "web01.example.com", "certificates": False}


def test_a_key_is_replaced_only_with_the_option_replace(web: Node, lb: Node) -> None:
    web.run("keys", "init")
    first = web.run("keys", "show").out
    assert "this node has a key already ('--replace'" in web.run("keys", "init", code=2).err
    assert web.run("keys", "show").out == first
    assert "restart the agent" in web.run("keys", "init", "--replace", code=0).out
    second = web.run("keys", "show").out
    assert second != first
    lb.feed(first, "keys", "trust", "web01.example.com", "-")
    alarm = lb.feed(second, "keys", "trust", "web01.example.com", "-", code=3)
    assert len(re.findall(PRINT, alarm.err)) == 2
    assert "another key of web01.example.com is pinned" in alarm.err
    lb.feed(second, "keys", "trust", "web01.example.com", "-", "--replace", code=0)
    assert lb.run("keys", "list").out.split()[-1] == re.findall(PRINT, second)[0]


def test_a_given_fingerprint_is_compared_with_the_file(web: Node) -> None:
    made = web.run("keys", "init", "--json").json["fingerprint"]
    public = str(web.write("public.pem", web.run("keys", "show").out))
    wrong = web.run("keys", "trust", "alice", public, "--fingerprint", made[:-1] + "!", code=3)
    assert f"its fingerprint is {made}, not" in wrong.err
    assert web.run("keys", "list").out == "no key is pinned\n"
    web.run("keys", "trust", "alice", public, "--fingerprint", made, code=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show"], "this node has no key (run 'localpuppet keys init')"),
        (["trust"], "NAME"),
        (["trust", "alice"], "FILE"),
        (["trust", "../alice", "input.yaml"], "'../alice' is not a signer's name"),
        (["trust", "Alice", "input.yaml"], "is not a signer's name"),
        (["trust", "*", "input.yaml"], "is not a signer's name"),
        (["trust", "a\x1bb", "input.yaml"], "is not a signer's name"),
        (["trust", "alice", "missing.pem"], "missing.pem: file not found"),
        (["trust", "alice", "input.yaml"], "input.yaml: is not a public key"),
        (["trust", "alice", "/dev/zero"], "not a regular file"),
        (["trust", "alice", "node.pem"], "is a private key, which must stay on its node"),
        (["trust", "alice", "open.pem"], "writable by others"),
        (["revoke", "alice"], "no key of alice is pinned"),
        (["revoke", "../../etc/passwd"], "is not a signer's name"),
        (["frobnicate"], "unknown command 'frobnicate'"),
        (["init", "extra"], "extra"),
    ],
)
def test_refusals_are_one_line_and_harmless(web: Node, arguments: list[str], message: str) -> None:
    web.write("node.pem", pem(rsa_key()).decode())
    web.write("open.pem", "x", 0o666)
    files = (".pem", ".yaml")
    named = [str(web.root / word) if word.endswith(files) else word for word in arguments]
    before = {path for path in web.root.rglob("*") if "cache" not in path.parts}
    done = web.run("keys", *named, code=2)
    assert len(done.err.splitlines()) == 1
    assert message in done.err
    assert done.err.rstrip("\n").isprintable()
    assert {path for path in web.root.rglob("*") if "cache" not in path.parts} == before


def test_standard_input_without_a_key_is_refused(web: Node) -> None:
    done = web.feed("", "keys", "trust", "alice", "-", code=2)
    assert "standard input: is not a public key" in done.err


def test_without_a_setting_the_name_is_puppets_certname(node: Node) -> None:
    probe = json.loads((node.state / "cache" / "puppet.json").read_text())
    certname = probe["installation"]["settings"]["certname"]
    assert node.run("keys", "init", "--json").json["name"] == certname.lower()
    probe["installation"]["settings"]["certname"] = "Web07.Example.COM"
    node.write("var/cache/puppet.json", json.dumps(probe), 0o600)
    assert node.run("keys", "show", "--json").json["name"] == "web07.example.com"


def test_a_person_has_a_name_of_their_own(node: Node) -> None:
    node.settings(identity={"name": "alice", "key": "alice.pem"})
    assert node.run("keys", "init").out.startswith("made the key of alice: ")
    assert (node.root / "alice.pem").exists()
    assert node.run("keys", "show").out.startswith("# alice SHA256:")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"node": "WEB01.example.com"}, "localpuppet.yaml: node: node name"),
        ({"node": "*"}, "localpuppet.yaml: node: node name"),
        ({"node": 7}, "node: must be a string"),
        ({"identity": {"name": "Alice"}}, "identity.name: 'Alice' is not a signer's name"),
        ({"identity": {"certificate": "c.pem"}}, "identity: certificate needs key, too"),
        ({"identity": {"certificate": "c.pem", "key": "k.pem"}}, "certificate needs ca, too"),
        ({"identity": {"crl": "crl.pem"}}, "identity: crl needs ca, too"),
        ({"identity": {"cert": "c.pem"}}, "unknown key 'cert'"),
        ({"trusted": ""}, "trusted: must not be empty"),
    ],
)
def test_settings_are_refused_by_place(node: Node, settings: dict[str, Any], message: str) -> None:
    node.settings(**settings)
    assert message in node.run("keys", "show", code=2).err


class TestCertificate:
    """A node that signs with the certificate that it has from the site's Puppet CA."""

    @pytest.fixture
    def certified(self, node: Node) -> Node:
        ca = Ca()
        issued = ca.issue("web01.example.com")
        write(node.root / "ca.pem", ca.text)
        write(node.root / "cert.pem", issued.text)
        write(node.root / "key.pem", pem(issued.key), mode=0o600)
        node.settings(identity={"certificate": "cert.pem", "key": "key.pem", "ca": "ca.pem"})
        return node

    def test_it_is_shown_and_names_the_node(self, certified: Node) -> None:
        first, second, third = certified.run("keys", "show", code=0).out.splitlines()[:3]
        assert re.fullmatch(rf"# web01\.example\.com {PRINT}", first)
        assert re.fullmatch(r"# by CN=Puppet CA: ca\.example\.com, until 20\d\d-.* UTC", second)
        assert third == "-----BEGIN CERTIFICATE-----"
        found = certified.run("keys", "show", "--json").json
        assert (found["kind"], found["issuer"]) == ("certificate", "CN=Puppet CA: ca.example.com")

    def test_a_certificate_cannot_be_pinned_and_excludes_an_own_key(self, certified: Node) -> None:
        assert "signs with its certificate" in certified.run("keys", "init", code=2).err
        pinned = certified.run("keys", "trust", "a", str(certified.root / "cert.pem"), code=2)
        assert "is a certificate; only keys can be pinned (set identity.ca" in pinned.err

    def test_a_key_of_another_certificate_is_refused(self, certified: Node) -> None:
        write(certified.root / "key.pem", pem(Ca().issue("other").key), mode=0o600)
        done = certified.run("keys", "show", code=2)
        assert "key.pem: is not the key of the certificate" in done.err

    def test_a_name_that_is_not_the_certificates_is_refused(self, certified: Node) -> None:
        files = {"certificate": "cert.pem", "key": "key.pem", "ca": "ca.pem"}
        certified.settings(identity={**files, "name": "web02.example.com"})
        done = certified.run("keys", "show", code=2)
        assert "the certificate is web01.example.com's (remove identity.name)" in done.err

    def test_revoking_a_pinned_key_warns_that_the_certificate_stays(self, certified: Node) -> None:
        certified.settings(identity={"ca": "ca.pem", "name": "web01"})
        certified.run("keys", "init")
        public = certified.write("public.pem", certified.run("keys", "show").out)
        certified.run("keys", "trust", "alice", str(public))
        done = certified.run("keys", "revoke", "alice", "--yes", code=0)
        assert "a certificate of alice by" in done.err
        assert "revoke it at the CA" in done.err


def test_commands_without_signatures_load_no_cryptography(node: Node) -> None:
    code = (
        "import sys\nfrom localpuppet.main import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "print([name for name in sys.modules if name in ('joserfc', 'cryptography', 'sqlite3')])"
    )
    for arguments in (["status"], ["enc", "web01.example.net"], ["check"], ["keys", "--help"]):
        node.write("inputs/web01.example.net.yaml", "app: foo/trunk\nclasses: [foo]\n")
        env = {**os.environ, **node.environment(PYTHONPATH=str(REPOSITORY))}
        done = completed(sys.executable, "-c", code, *arguments, env=env, check=False)
        assert done.out.endswith("[]\n"), (arguments, done)


BUS = {"bus": "sqlite", "buses": {"sqlite": {"path": "../bus/bus.sqlite"}}}


def invitation(web: Node, lb: Node) -> tuple[Path, str]:
    """Let a member invite `lb`; return the invitation and its fingerprint."""
    yaml = "node: lb01.example.com\npuppet: {confdir: puppet/conf, vardir: puppet/var}\n"
    lb.write("localpuppet.yaml", yaml)
    joining = lb.run("join", code=0)
    assert "on a member: localpuppet keys invite lb01.example.com FILE" in joining.err
    lb.write("lb.pem", joining.out)
    short = web.run("keys", "invite", "lb01", str(lb.root / "lb.pem"))
    assert (short.code, "lb01 is a short name" in short.err) == (2, True)
    mine = lb.run("join", str(lb.root / "lb.pem"))
    assert "lb.pem: is no invitation (pass what 'localpuppet keys invite' printed" in mine.err
    invited = web.run("keys", "invite", "lb01.example.com", str(lb.root / "lb.pem"), code=0)
    found = re.search(rf"fingerprint of the invitation: ({PRINT})\n", invited.err)
    assert found
    return lb.write("fleet.json", invited.out), found[1]


def test_a_second_node_joins_and_both_trust_each_other(web: Node, lb: Node, tmp_path: Path) -> None:
    bus = {"sqlite": {"path": str(tmp_path / "bus" / "bus.sqlite")}}
    web.settings(node="web01.example.com", bus="sqlite", buses=bus)
    web.run("keys", "init", code=0)
    file, print_of = invitation(web, lb)
    lb.run("join", str(file), "--fingerprint", print_of, code=0)
    again = lb.run("join", str(file), "--fingerprint", print_of, code=0)
    assert "allows web01.example.com that already" in again.out
    assert (lb.root / "localpuppet.yaml").read_text().count("bus:") == 1
    expected = [*["2", "allow", "choria=web01.example.com", "status", "trigger"]]
    assert lb.run("policy", "show").out.split("\n")[1].split() == expected
    agent = lb.start("agent")
    asking = ("status", "--node", "lb01.example.com")
    answered = web.wait_until(lambda: (done := web.run(*asking)).code != 69 and done)
    assert agent.poll() is None
    assert answered.code == 0, answered.err
    assert answered.out.startswith("lb01.example.com: idle")


def test_a_wrong_or_changed_invitation_writes_nothing(web: Node, lb: Node) -> None:
    web.settings(node="web01.example.com", **BUS)
    web.run("keys", "init", code=0)
    file, print_of = invitation(web, lb)
    settings = (lb.root / "localpuppet.yaml").read_text()
    whole = file.read_text()
    other = lb.write("other.json", whole.replace("web01.example.com", "web02.example.com"))
    for arguments, code, error in (
        ([str(file)], 2, "without a terminal, pass --fingerprint"),
        ([str(file), "--fingerprint", "SHA256:x"], 3, f"its fingerprint is {print_of}, not SHA256"),
        ([str(other), "--fingerprint", print_of], 3, f"not {print_of}"),
    ):
        done = lb.run("join", *arguments)
        assert (done.code, error in done.err) == (code, True), done.err
    strange = web.run("join", str(file), "--fingerprint", print_of)
    assert (strange.code, "is for lb01.example.com" in strange.err) == (2, True)
    lb.settings(node="lb01.example.com", bus="sqlite", buses={"sqlite": {"path": "mine"}})
    refused = lb.run("join", str(file), "--fingerprint", print_of)
    assert (refused.code, "names another bus" in refused.err) == (2, True)
    lb.write("localpuppet.yaml", settings)
    assert not (lb.root / "trusted").exists()
    assert not (lb.root / "policies").exists()
    asked = in_terminal(lb, "join", str(file), typed="n\n")
    assert (asked.code, print_of in asked.out) == (1, True)
    assert not (lb.root / "trusted").exists()
    agreed = in_terminal(lb, "join", str(file), typed="y\n")
    assert agreed.code == 0, agreed.out
    (lb.root / "trusted/web01.example.com.pem").unlink()
    again = lb.run("join", str(file), "--fingerprint", print_of)
    assert again.code == 0, "after an interruption, the command completes what is missing"
    assert (lb.root / "trusted/web01.example.com.pem").exists()


def test_an_invitation_has_no_secret_and_none_of_the_members_own_files(web: Node, lb: Node) -> None:
    shown = {"servers": ["tls://n.example.com:4222"], "replicas": 3}
    buses = {"nats": {**shown, **{"certificate": "own.pem", "key": "own.key"}}, "timeout": 5}
    web.settings(node="web01.example.com", bus="nats", buses=buses)
    web.run("keys", "init", code=0)
    web.write("roster.yaml", "# roster\nnodes:\n  web01.example.com: {}\n")
    lb.write("lb.pem", lb.run("join").out)
    arguments = ["keys", "invite", "lb01.example.com", str(lb.root / "lb.pem")]
    roster = ["--roster", str(web.root / "roster.yaml"), "--allow", "trigger"]
    invited = web.run(*arguments, *roster, code=0)
    shared = json.loads(json.loads(invited.out)["settings"])
    assert shared == {"bus": "nats", "buses": {"nats": shown, "timeout": 5}}
    assert "PRIVATE" not in invited.out
    text = "# roster\nnodes:\n  lb01.example.com: {}\n  web01.example.com: {}\n"
    assert (web.root / "roster.yaml").read_text() == text
    assert web.run(*arguments, *roster).out == invited.out, "it can be repeated"
    wrong = web.run(*arguments, "--fingerprint", "SHA256:x")
    assert (wrong.code, wrong.out) == (3, "")
    short = web.run("keys", "trust", "lb01", str(lb.root / "lb.pem"))
    assert (short.code, "is the key of lb01.example.com (write lb01.ex" in short.err) == (2, True)
    assert "lb01 " not in web.run("keys", "list").out


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_a_node_joins_over_nats(web: Node, lb: Node, tmp_path: Path, secure: bool) -> None:
    authority = Authority(tmp_path)
    config = NatsConfig(tls=authority.server()) if secure else NatsConfig()
    server = NatsServer(tmp_path / "nats", config=config)
    server.start()
    try:
        shared = {"servers": [server.url], **({"ca": str(authority.path)} if secure else {})}

        def account(name: str) -> dict[str, str]:
            mine = authority.node(name)
            return {"certificate": str(mine.certificate), "key": str(mine.key)} if secure else {}

        buses = {"nats": {**shared, **account("web01.example.com")}}
        web.settings(node="web01.example.com", bus="nats", buses=buses)
        web.run("policy", "allow", "lb01.example.com", "trigger")
        web.run("keys", "init", code=0)
        file, print_of = invitation(web, lb)
        lb.run("join", str(file), "--fingerprint", print_of, code=0)
        if secure:  # the account is this node's: without one, the server refuses it
            # Its refusal may be lost: the server ends the connection at once.
            lb.wait_until(lambda: "certificate" in lb.run("nodes").err)
            settings = lb.root / "localpuppet.yaml"
            own = json.dumps(account("lb01.example.com"))[1:-1]
            settings.write_text(settings.read_text().replace('"servers"', f'{own}, "servers"'))
        lb.start("agent")
        lb.wait_until(lambda: "lb01.example.com" in web.run("nodes").out)
        asked = web.run("status", "--node", "lb01")
        assert (asked.code, "lb01.example.com: idle" in asked.out) == (0, True), asked.err
        sent = lb.run("trigger", "web01")
        assert (sent.code, "sent to web01.example.com" in sent.out) == (0, True), sent.err
    finally:
        lb.end()
        server.stop()


def test_an_action_is_allowed_unless_a_line_before_denies_it(web: Node) -> None:
    made = web.run("policy", "allow", "alice", "status", "deploy:shop/tags/*", code=0)
    assert "a new policy, which denies all else, also triggers of other nodes" in made.out
    assert "no key of alice is pinned" in made.err
    own = web.run("policy", "allow", "web01.example.com", "status", "--dry-run")
    assert (own.code, own.err) == (0, "")
    policy = web.root / "policies/puppet.policy"
    text = policy.read_text()
    assert text == "policy default deny\nallow\tchoria=alice\tstatus deploy:shop/tags/*\t*\t*\n"
    assert "allows alice that already" in web.run("policy", "allow", "alice", "status").out
    dry = web.run("policy", "allow", "bob", "log", "--dry-run")
    assert "would add: allow\tchoria=bob\tlog" in dry.out
    assert policy.read_text() == text
    assert "the action 'fly' is unknown" in web.run("policy", "allow", "bob", "fly").err
    policy.write_text(f"{text}deny\tchoria=bob\tlog\t*\t*\n")
    denied = web.run("policy", "allow", "bob", "log")
    assert (denied.code, "denied by policy line 3" in denied.err) == (2, True)
    shown = web.run("policy", "show", "--json").json
    assert [rule["actions"] for rule in shown["rules"]] == ["status deploy:shop/tags/*", "log"]
