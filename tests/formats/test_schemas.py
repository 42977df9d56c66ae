"""Schemas: one message for a document that does not fit, at a price that does not grow with it."""

import pytest

from localpuppet.errors import InvalidInputError
from localpuppet.formats import schemas
from localpuppet.formats.values import Json
from tests.rigs.limited import limited

WRONG = {
    "a list of numbers": "{'app': 'a/trunk', 'classes': list(range(500_000))}",
    "a mapping of numbers": "{'app': 'a/trunk', 'classes': {f'c{n}': n for n in range(80_000)}}",
    "unknown keys": "{f'k{n}': n for n in range(80_000)}",
    "layers": "{'app': 'a/trunk', 'layers': [[n] for n in range(250_000)]}",
    "one value": "{'app': 'a/trunk', 'classes': 'x' * 1_000_000}",
}


@pytest.mark.parametrize("document", WRONG)
def test_a_document_that_is_wrong_everywhere(document: str) -> None:
    done = limited(
        "from localpuppet.errors import InvalidInputError\n"
        "from localpuppet.formats import schemas\n"
        f"document = {WRONG[document]}\n"
        "try: schemas.check(document, schema='input', where='input.yaml')\n"
        "except InvalidInputError as error: print(error)\n"
    )
    assert done.code == 0, done.err[-500:]
    assert len(done.out.splitlines()) == 1
    assert len(done.out) < 300
    assert done.out.startswith("input.yaml: ")


def test_what_is_wrong_is_told_before_what_is_missing() -> None:
    with pytest.raises(InvalidInputError, match="unknown key 'Classes'"):
        schemas.check({"Classes": {}}, schema="input", where="input.yaml")
    with pytest.raises(InvalidInputError, match="the key 'app' is missing"):
        schemas.check({"classes": {}}, schema="input", where="input.yaml")


def test_of_several_errors_the_same_is_told_each_time() -> None:
    document: dict[str, Json] = {"app": 1, "layers": 2, "classes": 3}
    for body in (document, dict(reversed(document.items()))):
        with pytest.raises(InvalidInputError, match=r"input\.yaml: app: must be a string"):
            schemas.check(body, schema="input", where="input.yaml")
