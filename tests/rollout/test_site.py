"""Documents of sites: what is read, and what is refused with its place."""

import io
import json
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.documents import Documents
from localpuppet.rollout.cli.order import as_choria
from localpuppet.rollout.plan import PlanSelection, make_plan
from localpuppet.rollout.site import MAX_CAPABILITIES, MAX_COMPONENTS, EnvironmentSite
from localpuppet.rollout.site_file import read_site
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


def test_the_environment_defaults_to_production() -> None:
    assert read({"applications": {}}).environment == "production"


def test_checks_are_urls_and_argument_vectors() -> None:
    checks = ["http://%{node}:8080/health", ["/bin/probe", "--host", "%{node}"]]
    (found,) = read(parts(a={**PART, "checks": checks})).components
    assert found.checks == ("http://%{node}:8080/health", ("/bin/probe", "--host", "%{node}"))


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
def test_an_invalid_site_is_refused_with_the_place_of_the_error(
    raw: dict[str, Any], message: str
) -> None:
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
