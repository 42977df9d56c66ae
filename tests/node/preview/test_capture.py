"""Captures: localpuppet reads them strictly, writes them sorted, and makes node documents."""

import json
from dataclasses import replace
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.node.enc.document import EncData, ReleaseEnc
from localpuppet.node.preview.cache import request_of
from localpuppet.node.preview.compile_request import CapturedQuery
from localpuppet.node.preview.node_capture import NodeCapture, WithheldKeys, withhold
from localpuppet.node.preview.preview_limits import MAX_CAPTURE

WEB = NodeName("web1.example.org")
SECRET: Json = {"__ptype": "Withheld", "type": "String"}
FULL = NodeCapture(
    node=WEB,
    facts={"os": {"family": "Debian"}, "uptime": "3 days", "cores": 4},
    trusted={"certname": "web1.example.org"},
    layers=("db", "web"),
    data=EncData.from_dict(
        {
            "classes": {"app": {"port": 80, "password": SECRET, "gone": None}, "ntp": None},
            "parameters": {"role": "web", "db_password": SECRET, "url": "db://%{db_password}@db"},
            "environment": "production",
        }
    ),
    queries=(CapturedQuery(function="query_nodes", arguments=("role=web",), answer=["a", "b"]),),
    captured="2026-11-25T21:00:00Z",
    release="web/tags/r1",
)
ENC = ReleaseEnc.from_dict(
    {
        "classes": {"base": None, "app": {"port": 1, "gone": "lower"}},
        "layers": {"db": {"parameters": {"tier": "db"}}, "web": {"parameters": {"tier": "web"}}},
    }
)


def parsed(raw: object) -> NodeCapture:
    return NodeCapture.parse(json.dumps(raw).encode(), node=WEB, where="web1")


def test_a_written_capture_reads_back_as_equal() -> None:
    data = FULL.to_bytes()
    assert NodeCapture.parse(data, node=WEB, where="web1") == FULL
    assert FULL.to_bytes() == data
    least = NodeCapture(node=WEB, facts={})
    assert parsed({"facts": {}}) == least
    assert NodeCapture.parse(least.to_bytes(), node=WEB, where="web1") == least


def test_the_node_document_merges_the_release_and_has_a_value_for_each_placeholder() -> None:
    document = request_of(FULL, ENC)
    secret = document.parameters["db_password"]
    assert isinstance(secret, str)
    assert secret.startswith("withheld-")
    assert document.parameters["url"] == f"db://{secret}@db"
    assert document.parameters["tier"] == "web"
    app = document.classes["app"]
    assert app["port"] == 80
    assert app["password"] not in (secret, SECRET)
    assert "gone" not in app
    assert set(document.classes) == {"app", "base", "ntp"}
    assert FULL.values_for_puppet().values_for_puppet() == FULL.values_for_puppet()
    assert request_of(FULL, ENC) == document
    with pytest.raises(InvalidInputError, match=r"web1.*has no layer 'db'"):
        request_of(FULL, replace(ENC, layers={}))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"facts": None}, r"web1: facts: must be a mapping, not a null"),
        ({"fact": {}}, "unknown key 'fact'"),
        ({"schema": 2}, "schema"),
        ({"node": "web2.example.org"}, "web1: node: must be web1.example.org"),
        ({"node": "../x"}, "must be web1.example.org"),
        ({"layers": ["a", 1]}, r"web1: layers\[1\]: must be a string"),
        ({"layers": ["a"] * 257}, "257 elements"),
        ({"classes": {"App": {}}}, "web1: .*App"),
        ({"classes": {"app": 1}}, "classes.app: must be a mapping, not a number"),
        ({"classes": ["app", {}]}, r"classes\[1\]: must be a string"),
        ({"classes": "app"}, "must be a mapping or a list, not a string"),
        ({"parameters": []}, "parameters: must be a mapping"),
        ({"parameters": {"facts": 1}}, "facts"),
        ({"environment": "../x"}, "environment"),
        ({"environment": 1}, "environment: must be a string"),
        (
            {"parameters": {"a": [{"__ptype": "Withheld", "type": "Hash"}]}},
            r"parameters.a\[0\]: is",
        ),
        ({"facts": {"a": {"__ptype": "Withheld", "type": "String", "x": 1}}}, "facts.a: is a pla"),
        ({"queries": [{"function": "f", "arguments": []}]}, "'answer' is missing"),
        (
            {"queries": [{"function": "f", "arguments": "x", "answer": 1}]},
            "arguments: must be a li",
        ),
        ({"queries": 1}, "queries: must be a list"),
    ],
)
def test_an_invalid_capture_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        parsed({"facts": {}, **change})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b'{"facts": {}, "facts": {}}',
        b'{"facts": {"a": NaN}}',
        b'{"facts": {"a": "\\ud800"}}',
        b'{"facts": ' + b'{"a":' * 200 + b"1" + b"}" * 201,
        b'{"facts": {"a": [' + b"1," * 500_000 + b"1]}}",
        b'{"facts": {"a": "' + b"x" * MAX_CAPTURE + b'"}}',
    ],
    ids=["empty", "list", "null", "twice", "nan", "surrogate", "deep", "values", "bytes"],
)
def test_hostile_json_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInputError, match=r"^web1: "):
        NodeCapture.parse(data, node=WEB, where="web1")


def test_values_that_may_be_secret_become_placeholders_of_their_type() -> None:
    plain: Json = {"port": 80, "user": "app", "list": ["a", {"b": None}]}
    assert withhold(plain, WithheldKeys()) == plain
    secret: Json = {
        "dbPassword": "x",
        "api_tokens": {"one": "x", "many": ["x", 1, 1.5, None, True, ""]},
        "deep": [{"Secret-Key": {"__ptype": "Sensitive", "__pvalue": "x"}}],
        "rich": {"__ptype": "Sensitive", "__pvalue": {"user": "x"}},
        "url": "https://app:pass@db.example.org/x",
        "text": "-----BEGIN RSA PRIVATE KEY-----\nx",
    }
    withheld = withhold(secret, WithheldKeys())
    assert withheld == {
        "dbPassword": SECRET,
        "api_tokens": {
            "one": SECRET,
            "many": [SECRET, _of("Integer"), _of("Float"), None, True, ""],
        },
        "deep": [{"Secret-Key": {"__ptype": "Sensitive", "__pvalue": SECRET}}],
        "rich": {"__ptype": "Sensitive", "__pvalue": {"user": SECRET}},
        "url": SECRET,
        "text": SECRET,
    }
    assert withhold(withheld, WithheldKeys()) == withheld
    assert withhold({"password": "x"}, WithheldKeys(())) == {"password": "x"}
    keys = WithheldKeys(("*_Key",), shown=("host-key",))
    assert withhold({"apikey": "x", "HOST_KEY": "y"}, keys) == {"apikey": SECRET, "HOST_KEY": "y"}


@pytest.mark.parametrize(
    "secret",
    [
        {"key": "db_password", "value": "s3cret"},
        {"Key": "DbPassword", "Value": {"now": ["s3cret"]}},
        {"title": "x", "name": ["db", "password"], "value": "s3cret"},
        {"setting": "bind-pw", "value": "s3cret"},
        {"variable": "AWS_CREDS", "value": "s3cret"},
        {"root_pw": "s3cret"},
        {"tls.private.key.pem": "s3cret"},
        {"Pass Phrase": "s3cret"},
        {"headers": [{"Authorization": "s3cret"}]},
        {"remote": "https://s3cret@git.example.org/x"},
    ],
)
def test_a_secret_is_withheld_however_its_name_is_written(secret: Json) -> None:
    assert "s3cret" not in str(withhold(secret, WithheldKeys()))
    assert "s3cret" not in str(withhold({"rows": [{"deep": secret}]}, WithheldKeys()))


def test_what_only_looks_like_the_name_of_a_secret_stays() -> None:
    plain: Json = {
        "facts": [{"certname": "vault01", "name": "uptime", "value": "1 day"}],
        "remote": "ssh://git@git.example.org/x",
        "home": "https://git.example.org/@team",
    }
    assert withhold(plain, WithheldKeys()) == plain


def _of(kind: str) -> dict[str, str]:
    return {"__ptype": "Withheld", "type": kind}
