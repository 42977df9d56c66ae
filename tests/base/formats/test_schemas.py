"""Schemas: one short message for an invalid document, at a cost that does not grow with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats import schemas
from localpuppet.base.formats.values import Json
from tests.rigs.limited import limited

WRONG = {
    "a list of numbers": "{'app': 'a/trunk', 'classes': list(range(500_000))}",
    "a mapping of numbers": "{'app': 'a/trunk', 'classes': {f'c{n}': n for n in range(80_000)}}",
    "unknown keys": "{f'k{n}': n for n in range(80_000)}",
    "layers": "{'app': 'a/trunk', 'layers': [[n] for n in range(250_000)]}",
    "one value": "{'app': 'a/trunk', 'classes': 'x' * 1_000_000}",
}


@pytest.mark.parametrize("document", WRONG)
def test_a_document_with_many_errors_gets_one_short_message(document: str) -> None:
    done = limited(
        "from localpuppet.base.errors import InvalidInputError\n"
        "from localpuppet.base.formats import schemas\n"
        f"document = {WRONG[document]}\n"
        "try: schemas.check(document, schema='input', where='input.yaml')\n"
        "except InvalidInputError as error: print(error)\n"
    )
    assert done.code == 0, done.err[-500:]
    assert len(done.out.splitlines()) == 1
    assert len(done.out) < 300
    assert done.out.startswith("input.yaml: ")


def test_an_unknown_key_is_reported_before_a_missing_one() -> None:
    with pytest.raises(InvalidInputError, match="unknown key 'Classes'"):
        schemas.check({"Classes": {}}, schema="input", where="input.yaml")
    with pytest.raises(InvalidInputError, match="the key 'app' is missing"):
        schemas.check({"classes": {}}, schema="input", where="input.yaml")


def test_the_reported_error_does_not_depend_on_the_order_of_keys() -> None:
    document: dict[str, Json] = {"app": 1, "layers": 2, "classes": 3}
    for body in (document, dict(reversed(document.items()))):
        with pytest.raises(InvalidInputError, match=r"input\.yaml: app: must be a string"):
            schemas.check(body, schema="input", where="input.yaml")


SECRET = "hunter2 0123456"


@pytest.mark.parametrize(
    ("schema", "document", "message"),
    [
        (
            "settings",
            {"agent": {"run_cmd": {"sh": SECRET}}},
            "run_cmd: must be a string or a list, not a mapping",
        ),
        (
            "settings",
            {"agent": {"run_interval": [SECRET]}},
            "agent.run_interval: must be a string or false, not a list",
        ),
        (
            "settings",
            {"agent": {"run_cmd": [SECRET, 3]}},
            r"agent\.run_cmd\[1\]: must be a string, not a number$",
        ),
        ("settings", {"agent": {"run_cmd": []}}, "agent.run_cmd: must not be empty$"),
        ("settings", {"enc": ""}, "enc: must not be empty"),
        (
            "settings",
            {"instance_data": {"cloud_init": {"run": SECRET}}},
            r"cloud_init: unknown key 'run' \(did you mean 'run_dir'\?\)",
        ),
        ("settings", {"hooks": {"Shop": SECRET}}, "hooks: the name 'Shop' has a character"),
        ("settings", {"hooks": {SECRET: {}}}, "hooks: the name of 15 characters has a character"),
        ("settings", {"bus": SECRET}, "bus: must be one of sqlite"),
        ("settings", {"bus": "nats://h"}, r"servers in 'buses: \{nats: \{servers: \[URL"),
        ("settings", {"nats": SECRET}, r"unknown key 'nats' \(write it below 'buses'\)"),
        ("settings", {"enc": [SECRET]}, "enc: must be a string"),
        ("settings", {"https_ca": SECRET + "\n"}, "https_ca: has a character"),
        ("settings", {"puppet": {"reports": SECRET}}, "puppet.reports: must be a list"),
        ("input", {"app": "a", "parameters": SECRET}, "parameters: must be a mapping"),
        ("input", {"app": "a", "classes": {"a": SECRET}}, "classes.a: must be a mapping"),
        ("input", {"app": "a", SECRET * 5: 1}, "unknown key of 75 characters"),
        ("input", {"app": "a", "classes": {SECRET: 1}}, r"classes\.\(a key of 15 characters\)"),
        ("input", {"app": "a", "Classes": 1}, "unknown key 'Classes' .*did you mean 'classes'"),
    ],
)
def test_a_message_names_key_and_type_and_no_value(
    schema: str, document: dict[str, Json], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        schemas.check(document, schema=schema, where="f")
    assert "hunter2" not in str(caught.value)
    assert "0123456" not in str(caught.value)


def with_patterns(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [part for item in value for part in with_patterns(item)]
    if not isinstance(value, dict):
        return []
    own = [value] if isinstance(value.get("pattern"), str) else []
    return own + [part for item in value.values() for part in with_patterns(item)]


def all_with_patterns() -> list[dict[str, Any]]:
    files = sorted(Path(schemas.__file__).parent.glob("*.json"))
    parts = [part for file in files for part in with_patterns(json.loads(file.read_text()))]
    assert len(parts) > 4
    return parts


def test_no_pattern_lets_a_final_newline_through() -> None:
    """`$` matches before a last newline, too, for Python; `$(?!\\n)` means the end everywhere."""
    patterns = [part["pattern"] for part in all_with_patterns()]
    assert [pattern for pattern in patterns if not pattern.endswith(r"$(?!\n)")] == []


def test_each_pattern_says_what_to_write() -> None:
    assert [part for part in all_with_patterns() if not part.get("$comment")] == []
