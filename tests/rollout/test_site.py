"""Sites: documents, and servers that SRV records name."""

import io
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
import yaml

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import NodeName
from localpuppet.rollout.cli.order import as_choria
from localpuppet.rollout.plan import PlanSelection, make_plan
from localpuppet.rollout.site import MAX_CAPABILITIES, MAX_COMPONENTS, EnvironmentSite
from localpuppet.rollout.site_file import DEFAULT, ServiceFetch, look_up, read_site, site_url
from localpuppet.rollout.site_file import SERVICE_MOST as MOST
from tests.doubles.ports import FakeClock
from tests.rigs.node import REPOSITORY

PART = {"node": "n1.example.com"}


def read(raw: dict[str, Any]) -> EnvironmentSite:
    return EnvironmentSite.from_dict(raw, where="site.yaml")


def parts(**bodies: Any) -> dict[str, Any]:
    return {"applications": {"App[1]": bodies}}


def test_a_site_is_sorted_and_has_each_name_once() -> None:
    found = read(
        {
            "environment": "staging",
            "applications": {
                "B": {"z": {"node": "n2", "produces": ["q", "p", "q"]}, "a": {"node": "n2"}},
                "A": {"y": {"node": "n1", "consumes": ["p"], "produces": None}},
                "C": {},
            },
        }
    )
    assert (found.environment, found.applications) == ("staging", ("A", "B", "C"))
    assert [(one.node, one.application, one.name) for one in found.components] == [
        ("n1", "A", "y"),
        ("n2", "B", "a"),
        ("n2", "B", "z"),
    ]
    assert found.components[2].produces == ("p", "q")
    assert str(found.components[0]) == "y of A on n1"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "site.yaml: the key 'applications' is missing"),
        ({"applications": []}, "site.yaml: applications: must be a mapping, not a list"),
        ({"applications": {}, "aplications": {}}, "unknown key 'aplications' .*'applications'"),
        ({"applications": {}, "environment": 1}, "environment: must be a string, not a number"),
        ({"applications": {}, "environment": "Pr-od"}, "environment: .* not a valid environment"),
        ({"applications": {"App[1]": 1}}, r"applications.App\[1\]: must be a mapping"),
        ({"applications": {"": {}}}, "the name is empty"),
        ({"applications": {"a\nb": {}}}, r"applications.a\\x0ab: the name has a control"),
        (parts(a=None), r"applications.App\[1\].a: must be a mapping, not a null"),
        (parts(a={}), r"App\[1\].a: the key 'node' is missing"),
        (parts(a={"node": "N1"}), r"App\[1\].a.node: .*lower case .*write n1"),
        (parts(a={"node": "*"}), r"App\[1\].a.node: node name"),
        (parts(a={"node": 1}), r"App\[1\].a.node: must be a node's name, not a number"),
        (parts(a={**PART, "nodes": []}), r"App\[1\].a: unknown key 'nodes' .*'node'"),
        (parts(a={**PART, "produces": "p"}), r"a.produces: must be a list, not a string"),
        (parts(a={**PART, "produces": {}}), r"a.produces: must be a list, not a mapping"),
        (parts(a={**PART, "produces": [["p"]]}), r"a.produces\[0\]: must be a string, not a list"),
        (parts(a={**PART, "consumes": ["p", 1]}), r"a.consumes\[1\]: must be a string"),
        (parts(a={**PART, "consumes": [True]}), r"a.consumes\[0\]: must be a string, not a bool"),
        (parts(a={**PART, "consumes": ["p "]}), r"a.consumes\[0\]: is not a name: .* no space"),
        (parts(a={**PART, "consumes": ["p" * 256]}), r"a.consumes\[0\]: is not a name: at most"),
        (parts(a={**PART, "consumes": ["\u202e"]}), r"a.consumes\[0\]: the name has a control"),
        (parts(**{"b" * 256: PART}), "is not a name: at most 255"),
        (parts(a={**PART, "checks": "http://a"}), "a.checks: must be a list"),
        (parts(a={**PART, "checks": ["rm -rf /"]}), r"checks\[0\]: is not an http or https URL"),
        (parts(a={**PART, "checks": ["http://me:pw@a/"]}), r"checks\[0\]: is not an http"),
        (parts(a={**PART, "checks": [[]]}), r"checks\[0\]: is not a command"),
        (parts(a={**PART, "checks": [["probe"]]}), r"checks\[0\]: is not a command"),
        (parts(a={**PART, "checks": [["/p", 1]]}), r"checks\[0\]\[1\]: must be a string"),
        (parts(a={**PART, "checks": [["/p", "\0"]]}), r"checks\[0\]\[1\]: has a NUL"),
        (parts(a={**PART, "checks": ["http://%{host}/"]}), r"placeholder 'host' .*%\{node\}"),
        (parts(a={**PART, "checks": ["http://a/"] * 21}), "a.checks: has 21 elements; at most 20"),
    ],
)
def test_an_invalid_site_is_refused_with_its_place(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as refused:
        read(raw)
    assert str(refused.value).isprintable()
    assert str(refused.value).startswith("site.yaml: ")
    json.dumps(raw)  # each of these can be in a file


def test_the_example_of_the_documentation_is_a_valid_site() -> None:
    example = REPOSITORY / "docs/examples/site.yaml"
    found = make_plan(read_site(str(example), Documents(None)), PlanSelection(), where="example")
    assert [[str(run.node) for run in group] for group in found.groups] == [
        ["db01.example.com"],
        ["web01.example.com", "web02.example.com"],
        ["lb01.example.com"],
    ]
    pages = ("how-to/plan-a-site.md", "reference/site-file.md")
    shown = "".join((REPOSITORY / "docs" / page).read_text() for page in pages)
    assert example.read_text().partition("\n")[2] in shown
    assert click.unstyle(as_choria(found)).replace("\t", " " * 8) in shown


COMMAND = {"applications": {"A": {"x": {**PART, "checks": ["http://a/", ["/bin/probe"]]}}}}


def test_commands_of_checks_are_accepted_only_from_a_named_yaml_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "site"
    file.write_text(yaml.safe_dump(COMMAND))
    assert read_site(str(file), Documents(None)).components[0].checks[1] == ("/bin/probe",)
    refusal = "x of A on n1.example.com: its checks have a command, which only a YAML file may have"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    with pytest.raises(InvalidInputError, match=refusal):
        read_site("-", Documents(None))
    file.write_text(json.dumps(COMMAND))
    with pytest.raises(InvalidInputError, match=refusal):
        read_site(str(file), Documents(None))


def test_an_error_of_a_puppet_server_instead_of_a_graph_is_named(tmp_path: Path) -> None:
    file = tmp_path / "environment.json"
    file.write_text(json.dumps({"message": "Not Found: s3cret", "issue_kind": "RUNTIME_ERROR"}))
    with pytest.raises(InvalidInputError, match="the error of a Puppet server") as caught:
        read_site(str(file), Documents(None))
    assert "s3cret" not in str(caught.value)


def test_there_is_a_most_of_components_and_of_capabilities() -> None:
    names = [f"p{number}" for number in range(MAX_CAPABILITIES)]
    (found,) = read(parts(a={**PART, "produces": names})).components
    assert len(found.produces) == MAX_CAPABILITIES
    with pytest.raises(InvalidInputError, match="produces: has 10001 elements; at most 10000"):
        read(parts(a={**PART, "produces": [*names, "q"]}))
    many = dict.fromkeys(map(str, range(MAX_COMPONENTS + 1)), PART)
    with pytest.raises(InvalidInputError, match="too many components: at most 250000"):
        read(parts(**many))


NAME = "_x-puppet._tcp.example.com"
PATH = "/puppet/v3/environment/production"


@dataclass
class Servers:
    """Servers of which some are up, and each try takes a second."""

    found: Sequence[str] | UnavailableError = ()
    up: set[str] = field(default_factory=set)
    asked: list[tuple[str, float]] = field(default_factory=list)
    clock: FakeClock = field(default_factory=FakeClock)

    def servers(self, name: str) -> Sequence[str]:
        assert name == NAME
        if isinstance(self.found, UnavailableError):
            raise self.found
        return self.found

    def client(self, seconds: float) -> "Client":
        return Client(self, seconds)

    def fetch(self, default: str = "") -> ServiceFetch:
        return ServiceFetch(
            self.client, look_up=self.servers, timeout=30, now=self.clock.monotonic, default=default
        )


@dataclass
class Client:
    servers: Servers
    seconds: float

    def get(self, url: str, *, limit: int) -> bytes:
        self.servers.asked.append((url, self.seconds))
        self.servers.clock.advance(6)
        if not any(url.startswith(f"https://{one}/") for one in self.servers.up):
            raise UnavailableError("is down", where=url)
        return b"{}"


def test_the_first_server_that_answers_is_used_within_a_single_timeout() -> None:
    servers = Servers(
        found=["a.example.com:8141", "b.example.com:8140", "c.example.com:8140"],
        up={"b.example.com:8140", "c.example.com:8140"},
    )
    assert servers.fetch().get(f"https://{NAME}{PATH}", limit=5) == b"{}"
    assert servers.asked == [
        (f"https://a.example.com:8141{PATH}", 10.0),
        (f"https://b.example.com:8140{PATH}", 12.0),
    ]


def test_if_no_server_answers_the_last_reason_is_reported() -> None:
    servers = Servers(found=["a.example.com:8140", "b.example.com:8140"])
    with pytest.raises(UnavailableError, match=f"{NAME}: none of 2 servers .* is down"):
        servers.fetch(DEFAULT).get(f"https://{NAME}{PATH}", limit=5)
    assert len(servers.asked) == 2


def test_no_record_and_no_answer_are_two_things() -> None:
    servers = Servers(up={DEFAULT})
    with pytest.raises(UnavailableError, match="has no SRV records"):
        servers.fetch().get(f"https://{NAME}{PATH}", limit=5)
    assert servers.fetch(DEFAULT).get(f"https://{NAME}{PATH}", limit=5) == b"{}"
    servers.found = UnavailableError("lookup failed", where=NAME)
    with pytest.raises(UnavailableError, match="lookup failed"):
        servers.fetch(DEFAULT).get(f"https://{NAME}{PATH}", limit=5)
    assert len(servers.asked) == 1


def test_a_url_with_a_server_is_fetched_directly() -> None:
    servers = Servers(up={"puppet:8140"})
    assert servers.fetch().get(f"https://puppet:8140{PATH}", limit=5) == b"{}"
    assert servers.asked == [(f"https://puppet:8140{PATH}", 30)]
    for name in (f"{NAME}:8140", f"me:secret@{NAME}"):
        with pytest.raises(InvalidInputError, match="SRV records name it") as caught:
            servers.fetch().get(f"https://{name}{PATH}", limit=5)
        assert "secret" not in str(caught.value)


def test_srv_names_an_environment_of_this_nodes_domain() -> None:
    assert site_url("srv:dev", NodeName("db.example.com")) == (
        "https://_x-puppet._tcp.example.com/puppet/v3/environment/dev"
    )
    with pytest.raises(InvalidInputError, match="this node's name has no domain"):
        site_url("srv:dev", NodeName("db"))
    with pytest.raises(InvalidInputError, match="not a valid environment name"):
        site_url("srv:../x", NodeName("db.example.com"))


RECORDS = {
    "_x-puppet._tcp.example.com.": ["20 9 81 old.example.com.", "10 5 8140 puppet.EXAMPLE.com."],
    "_x-puppet._tcp.many.example.com.": [f"0 1 {port} a.example.com." for port in range(1, 20)],
    "_x-puppet._tcp.none.example.com.": ["0 0 0 ."],
    "_x-puppet._tcp.bad.example.com.": ["0 0 8140 a_b.example.com."],
    "_x-puppet._tcp.empty.example.com.": [],
}


def answer(question: bytes) -> bytes:
    asked = dns.message.from_wire(question)
    name = asked.question[0].name.to_text()
    reply = dns.message.make_response(asked)
    if "servfail" in name:
        reply.set_rcode(dns.rcode.SERVFAIL)
    elif name not in RECORDS:
        reply.set_rcode(dns.rcode.NXDOMAIN)
    elif RECORDS[name]:
        reply.answer.append(dns.rrset.from_text(name, 60, "IN", "SRV", *RECORDS[name]))
    told: bytes = reply.to_wire()
    return told


Lookup = Callable[[str], list[str]]


@pytest.fixture
def lookup() -> Iterator[Lookup]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                question, who = server.recvfrom(4096)
                if not question:
                    return
                server.sendto(answer(question), who)

        thread = threading.Thread(target=serve)
        thread.start()
        yield partial(look_up, server=server.getsockname())
        server.sendto(b"", server.getsockname())
        thread.join()


def test_records_of_a_name_server_are_read(lookup: Lookup) -> None:
    assert lookup("_x-puppet._tcp.example.com") == ["puppet.example.com:8140", "old.example.com:81"]
    assert len(lookup("_x-puppet._tcp.many.example.com")) == MOST
    for none in ("none", "empty", "nowhere"):
        assert lookup(f"_x-puppet._tcp.{none}.example.com") == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("_x-puppet._tcp.servfail.example.com", "lookup failed: NoNameservers"),
        ("_x-puppet._tcp.bad.example.com", "has an invalid record"),
        (f"_x-puppet._tcp.{'x' * 64}.example.com", "lookup failed"),
    ],
)
def test_a_failed_lookup_is_an_error_and_not_empty(lookup: Lookup, name: str, message: str) -> None:
    with pytest.raises(UnavailableError, match=message) as caught:
        lookup(name)
    assert "\n" not in str(caught.value)
