"""classify: precedence, references `%{name}`, and that Puppet reads the same values again."""

import base64
import json
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats import strict_yaml
from localpuppet.base.formats.values import Json
from localpuppet.node.enc.document import EncData, ReleaseEnc, classify, to_yaml


def data(**raw: Json) -> EncData:
    return EncData.from_dict(raw)


def test_later_layers_take_precedence_for_each_parameter() -> None:
    document = classify(
        [
            data(
                classes={"web": {"port": 80, "tls": False}, "ntp": None}, parameters={"dc": "ams"}
            ),
            data(classes={"web": {"port": 8080}}, environment="canary"),
            data(classes=["motd"], parameters={"dc": "fra"}),
        ]
    )
    assert document.to_dict() == {
        "classes": {"web": {"port": 8080, "tls": False}, "ntp": {}, "motd": {}},
        "parameters": {"dc": "fra"},
        "environment": "canary",
    }


def test_null_removes_a_value_of_an_earlier_layer_and_stays_in_the_top_scope() -> None:
    unset = data(classes={"web": {"port": None}}, parameters={"x": None})
    document = classify([data(classes={"web": {"port": 80}}), unset])
    assert (document.classes, document.parameters) == ({"web": {}}, {"x": None})


def test_references_are_resolved_among_the_merged_parameters() -> None:
    document = classify(
        [
            data(classes={"web": {"name_of": ["%{host}.%{zone.name}", {"k": "%{n}"}]}}),
            data(parameters={"host": "web-%{dc}", "dc": "ams", "zone": {"name": "x.net"}, "n": 3}),
        ]
    )
    assert document.classes["web"]["name_of"] == ["web-ams.x.net", {"k": "3"}]
    assert document.parameters["host"] == "web-ams"
    literal = classify([data(classes={"web": {"log": "%{literal('%')}{Referer}i 100%"}})])
    assert literal.classes["web"]["log"] == "%{Referer}i 100%"


@pytest.mark.parametrize(
    ("parameters", "text", "message"),
    [
        ({}, "%{missing}", "classes.web.x: '%{missing}' is unknown"),
        ({"a": "%{b}", "b": "%{a}"}, "%{a}", "refer to each other: a -> b -> a"),
        ({"a": [1]}, "%{a}", "is a list, not text"),
        ({"a": None}, "%{a}", "is a null, not text"),
        ({"a": {"b": 1}}, "%{a.c}", "no key 'c'"),
        ({}, "%{User-Agent}i", "not a parameter's name"),
        ({}, "%{open", "not closed"),
    ],
)
def test_a_bad_reference_is_named(parameters: dict[str, Json], text: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        classify([data(classes={"web": {"x": text}}, parameters=parameters)])
    assert message in str(error.value)


def test_layers_are_selected_by_name() -> None:
    enc = ReleaseEnc.from_dict({"classes": ["base"], "layers": {"ams": {"classes": ["ams"]}}})
    assert [list(layer.classes) for layer in enc.select(["ams"])] == [["base"], ["ams"]]
    with pytest.raises(InvalidInputError, match=r"layers\[0\]: .* no layer 'amz' .*'ams'"):
        enc.select(["amz"])
    with pytest.raises(InvalidInputError, match="twice"):
        enc.select(["ams", "ams"])


@pytest.mark.parametrize(
    "name", ["facts", "trusted", "clientcert", "environment", "server_facts", "module_name"]
)
def test_reserved_parameters_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="reserved"):
        data(parameters={name: "x"})


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.sampled_from(
        ["no", "012", "1:30", "2024-01-01", "~", "", "<<", "=", ":a", "\x85", "\U0001f600"]
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
RUBY = """
require 'yaml'; require 'json'; require 'base64'
STDOUT.sync = true
STDIN.each_line do |line|
  text = Base64.strict_decode64(line.strip).force_encoding('UTF-8')
  # As lib/puppet/indirector/node/exec.rb reads an ENC's output (Puppet 7.23).
  value = YAML.safe_load(text, permitted_classes: [Symbol], aliases: false)
  puts JSON.generate({ 'value' => value })
end
"""


@pytest.fixture(scope="module")
def ruby() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        ["ruby", "-e", RUBY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin
        process.stdin.close()


@pytest.mark.puppet
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(documents=st.lists(st.dictionaries(TEXT, VALUES, max_size=4), min_size=1, max_size=5))
def test_ruby_reads_the_written_values(
    ruby: "subprocess.Popen[str]", documents: list[dict[str, Json]]
) -> None:
    assert ruby.stdin
    assert ruby.stdout
    for document in documents:
        text = to_yaml(document) + "\n"
        ruby.stdin.write(base64.b64encode(text.encode()).decode() + "\n")
        ruby.stdin.flush()
        assert json.loads(ruby.stdout.readline()) == {"value": document}


@pytest.mark.puppet
@settings(max_examples=100, deadline=None)
@given(document=st.dictionaries(TEXT, VALUES, max_size=4))
def test_the_strict_reader_reads_the_written_values(document: dict[str, Json]) -> None:
    assert strict_yaml.parse(to_yaml(document).encode(), where="x") == document
