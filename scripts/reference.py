"""Write what is generated in the documentation: commands, settings, keys of JSON, the drawing.

- `settings.md` is from `localpuppet/base/formats/schemas/settings.schema.json`. Beside its
  `description` and `default`, a key there has `x-default` (a default in words), `x-type` (a type in
  words), `x-used-by` and `x-example` (YAML). `x-groups` has the order of the page.
- `commands/*.md` are from the command line.
- `images/architecture.svg` is from the imports of all modules (`drawing.py`).
- `json.md` gets the keys of each format in `docs/formats.toml` that a command prints.

Examples:
    scripts/reference --check    fail if a page is not what the code would give
    scripts/reference --write    write the pages
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from json import dumps, loads  # noqa: TID251 - files of this repository
from pathlib import Path
from typing import Any

from command_pages import render_command_pages, wrap
from drawing import draw, read_imports
from formats import collect_keys, read_formats, replace_between

from localpuppet.main import cli

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = ROOT / "localpuppet/base/formats/schemas/settings.schema.json"
PAGES = ROOT / "docs/reference"
NOTICE = "<!-- Written by scripts/reference: change {source} instead. -->"
KEYS_BEGIN, KEYS_END = "<!-- keys: written by scripts/reference -->", "<!-- end of keys -->"
_TYPES = {
    "object": "mapping",
    "array": "list",
    "string": "string",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
}
_NAMED_TYPES = {"path": "path", "seconds": "seconds", "globs": "list of patterns"}


def walk_settings(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return each key of a schema with its part of the schema; `NAME` matches any name."""
    yield from _below(schema, "")


def _below(body: Mapping[str, Any], place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, part in body.get("properties", {}).items():
        yield f"{place}{name}", part
        yield from _below(part, f"{place}{name}.")
    names = body.get("additionalProperties")
    if isinstance(names, dict) and "properties" in names:
        yield f"{place}NAME", names
        yield from _below(names, f"{place}NAME.")
    for choice in body.get("anyOf", ()):
        yield from _below(choice, place)


def describe_type(part: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return the type of a setting in words, with its limits."""
    name = str(part.get("$ref", "")).rpartition("/")[2]
    if name:
        part = {**definitions[name], **part}
    if "x-type" in part:
        return str(part["x-type"])
    if "const" in part:
        return f"`{dumps(part['const']).strip(chr(34))}`"
    if "enum" in part:
        return "one of " + ", ".join(f"`{value}`" for value in part["enum"])
    if "anyOf" in part:
        return " or ".join(describe_type(choice, definitions) for choice in part["anyOf"])
    text = _NAMED_TYPES.get(name) or _TYPES[part["type"]]
    if part["type"] == "array" and "items" in part and name != "globs":
        text = f"list of {describe_type(part['items'], definitions)}s"
    return text + _limits(part)


def _limits(part: Mapping[str, Any]) -> str:
    if "minimum" in part:
        return f", {part['minimum']:,} to {part['maximum']:,}"
    if "maximum" in part:
        return f", at most {part['maximum']:,}"
    if "maxItems" in part:
        return f", at most {part['maxItems']:,}"
    return ""


def describe_default(part: Mapping[str, Any]) -> str:
    """Return the default of a setting in words; empty if it has none."""
    if "x-default" in part:
        return str(part["x-default"])
    if "default" not in part:
        return ""
    value = part["default"]
    if value == []:
        return "none"
    if isinstance(value, list):
        return ", ".join(f"`{entry}`" for entry in value)
    return f"`{value}`" if isinstance(value, str) else f"`{dumps(value)}`"


def render_setting(key: str, part: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return the section of one setting."""
    facts = {
        "Type": describe_type(part, definitions),
        "Default": describe_default(part),
        "Used by": str(part.get("x-used-by", "")),
    }
    lines = [f"### `{key}`", "", wrap(part["description"]), ""]
    lines += [wrap(f"- {name}: {text}", "  ") for name, text in facts.items() if text]
    if "x-example" in part:
        lines += ["", "```yaml", part["x-example"], "```"]
    return "\n".join(lines)


def find_ungrouped(schema: Mapping[str, Any]) -> list[str]:
    """Return the settings that no group lists: the page would leave them out."""
    grouped = [top for tops in schema["x-groups"].values() for top in tops]
    return sorted({*schema["properties"]} - {*grouped})


def render_settings(schema: Mapping[str, Any]) -> str:
    """Return the page of all settings."""
    settings = dict(walk_settings(schema))
    sections = ["# Settings", NOTICE.format(source=SCHEMA.relative_to(ROOT))]
    for paragraph in schema["description"].split("\n\n"):
        lines = paragraph.splitlines()
        sections.append("\n".join(wrap(line, "  " * line.startswith("- ")) for line in lines))
    sections += ["```yaml\n" + schema["x-example"] + "\n```"]
    for title, tops in schema["x-groups"].items():
        sections.append(f"## {title}")
        sections += [
            render_setting(key, part, schema["$defs"])
            for top in tops
            for key, part in settings.items()
            if key.partition(".")[0] == top and not key.endswith(".NAME")
        ]
    sections += ["## See also", SEE_ALSO]
    return "\n\n".join(sections) + "\n"


SEE_ALSO = """\
- [Files](files.md): the root and the state directory.
- [Exit codes](exit-codes.md): what happens if a setting is invalid."""


def render_keys() -> str:
    """Return a section for each format that a command prints, with its keys at all levels."""
    sections = []
    for listed in read_formats():
        if "--json" in listed.where:
            paths = set().union(*map(collect_keys, listed.keys))
            keys = sorted({path.rpartition(".")[2] for path in paths})
            sections += [
                f"### {listed.name[0].upper()}{listed.name[1:]}",
                wrap(f"In {listed.where}:"),
            ]
            sections.append(wrap(", ".join(f"`{key}`" for key in keys) + "."))
    return "\n\n".join(sections)


def render_pages() -> dict[Path, str]:
    """Return the text of each generated page by its path."""
    page = PAGES / "json.md"
    commands = render_command_pages(cli, NOTICE.format(source="the help of the command"))
    return {
        **{PAGES / "commands" / f"{name}.md": text for name, text in commands.items()},
        PAGES / "settings.md": render_settings(loads(SCHEMA.read_text("utf-8"))),
        ROOT / "docs/images/architecture.svg": draw(read_imports()),
        page: replace_between(page.read_text("utf-8"), KEYS_BEGIN, render_keys() + "\n", KEYS_END),
    }


def find_outdated(pages: Mapping[Path, str]) -> Sequence[str]:
    """Return the pages that differ from what the code would give, by their paths."""
    return [
        str(path.relative_to(ROOT))
        for path, text in pages.items()
        if not path.is_file() or path.read_text("utf-8") != text
    ]


def main() -> int:
    """Run the program and return its exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--check", action="store_true", help="compare the pages with the code")
    choice.add_argument("--write", action="store_true", help="write the pages")
    options = parser.parse_args()
    ungrouped = find_ungrouped(loads(SCHEMA.read_text("utf-8")))
    for key in ungrouped:
        place = SCHEMA.relative_to(ROOT)
        print(f"{place}: {key} is in no group (add it to 'x-groups')", file=sys.stderr)
    if ungrouped:
        return 1
    pages = render_pages()
    if options.write:
        for path, text in pages.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        return 0
    outdated = find_outdated(pages)
    for page in outdated:
        print(f"{page}: outdated (run 'scripts/reference --write')", file=sys.stderr)
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main())
