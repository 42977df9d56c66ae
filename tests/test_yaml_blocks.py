"""YAML blocks of documentation: each is a file that localpuppet accepts, or a part of one."""

import re
from collections.abc import Iterator

import yaml

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats import schemas
from localpuppet.base.formats.values import Json
from tests.rigs.node import REPOSITORY

BLOCK = re.compile(r"^( *)```yaml\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
# Files of Hiera, Alertmanager and others, and of `sealed`, by one of their first keys.
OTHERS = {"version", "lookup_options", "hierarchy", "inhibit_rules", "recipient", "number"}
SCHEMAS = ("settings", "input", "manifest", "site", "capture", "roster", "enc", "values")
HOOK: dict[str, Json] = {
    **{"type": "github", "secret_file": "secrets/hook"},
    **{"source": "shop", "caller": "deployer"},
}


def blocks() -> Iterator[tuple[str, dict[str, Json]]]:
    for page in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))):
        text = page.read_text()
        for block in BLOCK.finditer(text):
            line = text[: block.start()].count("\n") + 1
            lines = re.sub(f"^{block[1]}", "", block[2], flags=re.MULTILINE)
            yield f"{page.relative_to(REPOSITORY)}:{line}", yaml.safe_load(lines)


def fits(document: Json, schema: str) -> bool:
    try:
        schemas.check(document, schema=schema, where="")
    except InvalidInputError:
        return False
    return True


def is_part_of_settings(document: dict[str, Json]) -> bool:
    parts: list[Json] = [{"notify": {"channels": document}}]
    parts.append({"hooks": {"shop": {**HOOK, **document}}})
    return any(fits(part, "settings") for part in parts)


def test_each_yaml_block_fits_a_schema() -> None:
    every = [*blocks()]
    assert len(every) > 60
    misfits = [
        place
        for place, document in every
        if not OTHERS.intersection(document)
        and not any(fits(document, schema) for schema in SCHEMAS)
        and not is_part_of_settings(document)
    ]
    assert misfits == []
