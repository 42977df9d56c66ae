"""Collect the keys of every format from the code, and write the rename table.

- `docs/formats.toml` lists the formats: where each is, which code has its keys, and what was
  renamed.
- Keys come from the code, without running it: fields of dataclasses, keys of dict literals, members
  of enumerations, columns of tables, properties of JSON Schemas, names and labels of metrics.
- `tests/data/formats-before.json` has the keys of the previous release (for the first release:
  those of the last snapshot before the renames).

Examples:
    scripts/formats --check      fail if code, table and docs/reference/renamed-keys.md disagree
    scripts/formats --write      write the table into docs/reference/renamed-keys.md
    scripts/formats --keys       print the present keys as JSON
"""

import argparse
import ast
import re
import signal
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps, loads  # noqa: TID251 - files of this repository
from pathlib import Path
from textwrap import fill
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "localpuppet"
CONFIGURATION = ROOT / "docs/formats.toml"
PAGE = ROOT / "docs/reference/renamed-keys.md"
BEFORE = ROOT / "tests/data/formats-before.json"
BEGIN, END = "<!-- renames: written by scripts/formats -->", "<!-- end of renames -->"
WIDTH = 120
_LABEL = re.compile(r'(?:^|[{,])(\w+)="')
_PREFIX = re.compile(r"/[a-z_/]+\Z")
_METRIC = re.compile(r"localpuppet_\w+\Z")
_TABLE = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+) \((.*?)\)(?: STRICT|;)", re.DOTALL)
# Names of functions that return the form of a record, and of functions that write or print one.
_FORMS = ("to_dict", "to_payload", "to_public")
_WRITERS = ("emit_json", "emit_json_line", "write_json", "write_listed")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFormat:
    """A format: a record, a message, an output, or the metrics and words in them.

    Attributes:
        name: Its name, unique.
        where: Where an operator meets it, in Markdown.
        keys: References to the code that has its keys; see `collect_keys`.
        renamed: Old key → new key.
        removed: Old keys that have no successor.
        added: New keys that had no predecessor.
    """

    name: str
    where: str
    keys: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "RecordFormat":
        """Return a format in the form of `docs/formats.toml`."""
        lists = {key: tuple(raw.get(key, ())) for key in ("keys", "removed", "added")}
        renamed = raw.get("renamed", {})
        return cls(name=raw["name"], where=raw["where"], renamed=renamed, **lists)


def read_formats(path: Path = CONFIGURATION) -> list[RecordFormat]:
    """Return the listed formats, in order."""
    return [RecordFormat.from_dict(raw) for raw in _read_table(path)["format"]]


def read_exempt(path: Path = CONFIGURATION) -> list[str]:
    """Return the code that writes keys of another program's format."""
    return [raw["code"] for raw in _read_table(path)["exempt"]]


def _read_table(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text("utf-8"))


def collect_keys(reference: str, package: Path = PACKAGE) -> set[str]:
    """Return the keys at a reference: `[KIND ]PATH[:NAME]`.

    Without a kind, NAME is a class (its fields, or the members of an enumeration), a function (the
    keys of its dict literals) or a constant (the keys of a dict, or the texts of a tuple).
    Kinds: `dicts` (the keys of all dict literals in a class), `labels` and `metrics`, `tables`
    (columns of a constant in SQL), `schema` (properties of a JSON Schema), `prefixes`
    (the parts of keys on the bus), `texts` (all texts).

    Args:
        reference: The code; see above.
        package: The directory to which PATH is relative.

    Raises:
        LookupError: There is no such file, or the file has no such name.
    """
    kind, _, place = reference.rpartition(" ")
    path, _, name = place.partition(":")
    try:
        text = (package / path).read_text("utf-8")
    except FileNotFoundError as error:
        raise LookupError(f"{reference}: file not found (correct docs/formats.toml)") from error
    if kind == "schema":
        return set(_properties(loads(text), ""))
    tree = ast.parse(text)
    node = _find(tree, name.split(".")) if name else tree
    if node is None:
        raise LookupError(f"{reference}: name not found (correct docs/formats.toml)")
    return set(_READERS[kind](node))


def _find(tree: ast.AST, names: Sequence[str]) -> ast.AST | None:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If | ast.With):
            inner = _find(node, names)
            if inner is not None:
                return inner
        elif names[0] in _defined_names(node):
            return _find(node, names[1:]) if len(names) > 1 else node
    return None


def _defined_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(part, ast.Name):
                    yield part.id


def _members(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if "ClassVar" not in ast.unparse(statement.annotation):
                yield _key_of(statement) or statement.target.id
            elif statement.target.id == "SCHEMA":
                yield "schema"
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            yield str(statement.value.value)


def _key_of(field_: ast.AnnAssign) -> str:
    """Return the `Key` in the type of a field, or an empty text."""
    for call in _calls(field_.annotation):
        if _called_name(call) == "Key" and isinstance(call.args[0], ast.Constant):
            return str(call.args[0].value)
    return ""


def _dict_keys(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Dict):
            for key in inner.keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value
        elif isinstance(inner, ast.Assign):
            for target in inner.targets:
                if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                    yield str(target.slice.value)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))


def _called_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _texts(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def _columns(sql: str) -> Iterator[str]:
    for table, body in _TABLE.findall(sql):
        for part in re.split(r",\s*(?![^()]*\))", body):
            column = part.split()[0]
            if column != "PRIMARY":
                yield f"{table}.{column}"


def _properties(schema: Mapping[str, Any], place: str) -> Iterator[str]:
    for name, body in schema.get("properties", {}).items():
        path = f"{place}.{name}".lstrip(".")
        yield path
        yield from _properties(body, path)
    for part in ("additionalProperties", "items"):
        if isinstance(schema.get(part), dict):
            yield from _properties(schema[part], f"{place}.*" if part != "items" else place)
    for choice in schema.get("anyOf", ()):
        yield from _properties(choice, place)
    for name, body in schema.get("$defs", {}).items():
        yield from _properties(body, f"${name}")


def _plain_keys(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ClassDef):
        return _members(node)
    if isinstance(node, ast.Assign | ast.AnnAssign) and not isinstance(node.value, ast.Dict):
        return _texts(node)
    return _dict_keys(node)


_READERS: Mapping[str, Callable[[ast.AST], Iterable[str]]] = {
    "": _plain_keys,
    "dicts": _dict_keys,
    "labels": lambda node: (label for text in _texts(node) for label in _LABEL.findall(text)),
    "metrics": lambda node: filter(_METRIC.match, _texts(node)),
    "prefixes": lambda node: filter(_PREFIX.match, _texts(node)),
    "texts": _texts,
    "tables": lambda node: (column for text in _texts(node) for column in _columns(text)),
}


def collect_present(formats: Sequence[RecordFormat]) -> dict[str, list[str]]:
    """Return the present keys of each format, sorted."""
    return {
        format_.name: sorted(set().union(*map(collect_keys, format_.keys))) for format_ in formats
    }


def find_unlisted(references: Iterable[str], package: Path = PACKAGE) -> list[str]:
    """Return the functions that write keys of a record and are in no format, as `PATH:NAME`.

    A function writes keys if it has a dict literal with constant keys, and returns the form of a
    record by its name (`to_dict`), or calls a function that writes or prints one.
    """
    places = {reference.rpartition(" ")[2] for reference in references}
    return [
        f"{path}:{name}"
        for file in sorted(package.rglob("*.py"))
        for path in [str(file.relative_to(package))]
        if path not in places
        for name in _writing_functions(ast.parse(file.read_text("utf-8")), "")
        if not any(f"{path}:{part}" in places for part in _enclosing(name))
    ]


def _enclosing(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _writing_functions(tree: ast.AST, place: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _writing_functions(node, f"{place}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            writes = any(_called_name(call) in _WRITERS for call in _calls(node))
            if (writes or node.name in _FORMS) and any(_dict_keys(node)):
                yield f"{place}{node.name}"


def find_problems(
    formats: Sequence[RecordFormat],
    before: Mapping[str, Sequence[str]],
    present: Mapping[str, Sequence[str]],
) -> list[str]:
    """Return the differences between table and code, one line each."""
    return [
        f"{format_.name}: {text}"
        for format_ in formats
        for text in _problems(
            format_, set(before.get(format_.name, ())), set(present[format_.name])
        )
    ]


_LIST = "in docs/formats.toml, list it below this format: in"


def _problems(format_: RecordFormat, old: set[str], new: set[str]) -> Iterator[str]:
    renamed, targets = format_.renamed, list(format_.renamed.values())
    for target in sorted({target for target in targets if targets.count(target) > 1}):
        yield f"two keys are renamed to {target}"
    for key, target in renamed.items():
        if target in old and target not in renamed:
            yield f"{key} is renamed to {target}, which was another key"
    for key in sorted({*renamed, *format_.removed} - old):
        yield f"{key} never existed"
    for key in sorted({*format_.added} & old):
        yield f"{key} is listed as added, and existed before"
    gone, added = {*renamed, *format_.removed} - {*targets}, {*targets, *format_.added}
    for key in sorted(gone & new):
        yield f"the old key {key} still occurs"
    for key in sorted(added - new):
        yield f"the new key {key} does not occur"
    for key in sorted(old - new - gone):
        yield f"{key} is missing ({_LIST} 'removed', or as old = new in 'renamed')"
    for key in sorted(new - old - added):
        yield f"{key} is new ({_LIST} 'added')"


def render_table(formats: Sequence[RecordFormat]) -> str:
    """Return the upgrade notes: one table for each format that changed."""
    lines: list[str] = []
    for format_ in formats:
        if format_.renamed or format_.removed or format_.added:
            where = fill(format_.where, WIDTH, break_long_words=False, break_on_hyphens=False)
            lines += [f"## {format_.name[0].upper()}{format_.name[1:]}", "", where, ""]
            lines += ["| old | new |", "|---|---|"]
            lines += [f"| `{old}` | `{new}` |" for old, new in sorted(format_.renamed.items())]
            lines += [f"| `{old}` | (removed) |" for old in sorted(format_.removed)]
            lines += [f"| (new) | `{key}` |" for key in sorted(format_.added)]
            lines.append("")
    return "\n".join(lines)


def replace_table(page: str, table: str) -> str:
    """Return a page with another table between its marks."""
    return replace_between(page, BEGIN, table, END)


def replace_between(page: str, begin: str, text: str, end: str) -> str:
    """Return a page with another text between two marks."""
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n\n{text}\n{end}{rest.partition(end)[2]}"


def check() -> list[str]:
    """Return all differences between code, table and page, one line each."""
    formats = read_formats()
    before = loads(BEFORE.read_text("utf-8"))
    problems = find_problems(formats, before, collect_present(formats))
    references = [reference for format_ in formats for reference in format_.keys]
    problems += [
        f"{place}: writes keys of no format (add the function to a format in docs/formats.toml)"
        for place in find_unlisted([*references, *read_exempt()])
    ]
    page = PAGE.read_text("utf-8")
    if page != replace_table(page, render_table(formats)):
        problems.append(
            f"{PAGE.relative_to(ROOT)}: its tables are outdated (run 'scripts/formats --write')"
        )
    return problems


def main() -> int:
    """Run the program and return its exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--check", action="store_true", help="compare code, table and page")
    choice.add_argument("--write", action="store_true", help="write the table into the page")
    choice.add_argument("--keys", action="store_true", help="print the present keys as JSON")
    options = parser.parse_args()
    if options.keys:
        print(dumps(collect_present(read_formats()), indent=1))
        return 0
    if options.write:
        page = PAGE.read_text("utf-8")
        PAGE.write_text(replace_table(page, render_table(read_formats())), "utf-8")
        return 0
    try:
        problems = check()
    except LookupError as error:
        problems = [str(error)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    # A reader that has seen enough, such as `head`, ends the program without a message.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
