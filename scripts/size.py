"""Count the code lines of the product, by kind, and compare them with the recorded maximum.

- A code line is not blank and holds more than a comment or a docstring. `ruff format` decides
  where a line of Python ends; in the other kinds, a line counts once for each 120 characters.
- An SQL text in Python counts a line for each 100 characters, however it is broken into lines.
- `scripts/size.toml` holds the maximum of each kind. A kind above it fails the check.
- A Python file, tests included, has at most 600 lines unless `scripts/size.toml` says why.
- Tests, benchmarks, scripts and documentation do not count.

Example:
    scripts/size --files localpuppet/fleet
"""

import argparse
import ast
import io
import re
import signal
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = ROOT / "scripts/size.toml"
DIRECTORIES = ("localpuppet/", "modules/localpuppet/", "manifests/", "enc/")
LISTED = (*DIRECTORIES, "tests/")
# Texts that are code, by suffix: the kind, and what a comment looks like.
KINDS = {
    ".rb": ("ruby", re.compile(r"^[ \t]*#.*$", re.MULTILINE)),
    ".js": ("javascript", re.compile(r"/\*[\s\S]*?\*/|^[ \t]*//.*$", re.MULTILINE)),
    ".css": ("css", re.compile(r"/\*.*?\*/", re.DOTALL)),
    ".html": ("templates", re.compile(r"\{#.*?#\}|<!--.*?-->", re.DOTALL)),
    ".erb": ("templates", re.compile(r"<%#.*?%>", re.DOTALL)),
    ".epp": ("templates", re.compile(r"<%#.*?%>", re.DOTALL)),
    ".sql": ("sql", re.compile(r"--.*$|/\*[\s\S]*?\*/", re.MULTILINE)),
}
ORDER = ("python", "ruby", "javascript", "css", "templates", "sql")
LINE, SQL_LINE = 120, 100
# Lines of a Python file with all, and how many files may have more.
MOST_LINES, MOST_LONG = 600, 10
SQL = re.compile(r"\s*(SELECT|INSERT|REPLACE|UPDATE|DELETE|CREATE|DROP|ALTER|WITH|PRAGMA)\s")
BLANK = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSize:
    """The size of one file.

    Attributes:
        kind: One of ORDER.
        lines: Code lines.
        tokens: Tokens of the code; words and marks in the other kinds.
        imports: Code lines of import statements.
        imported: Dotted names that a module of Python imports, relative ones made absolute.
    """

    kind: str
    lines: int
    tokens: int
    imports: int = 0
    imported: frozenset[str] = frozenset()


def measure(path: str, text: str) -> FileSize | None:
    """Return the size of a file, or None if its kind does not count.

    Args:
        path: Its path below the top of the repository.
        text: Its content.
    """
    if path.endswith(".py"):
        return _measure_python(path, text)
    kind, comment = KINDS.get(Path(path).suffix, ("", None))
    if comment is None:
        return None
    code = comment.sub("", text)
    lines = (len(line.strip()) for line in code.splitlines())
    return FileSize(
        kind=kind,
        lines=sum(-(-length // (SQL_LINE if kind == "sql" else LINE)) for length in lines),
        tokens=len(re.findall(r"\w+|[^\w\s]", code)),
    )


def _measure_python(path: str, text: str) -> FileSize:
    tree = ast.parse(text)
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in BLANK
    ]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    docstrings = {line for node in _docstrings(tree) for line in _lines(node)}
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    return FileSize(
        kind="python",
        lines=len(lines - docstrings) + sum(_sql_difference(node, lines) for node in _sql(tree)),
        tokens=sum(token.start[0] not in docstrings for token in tokens),
        imports=len({line for node in imports for line in _lines(node)}),
        imported=frozenset(name for node in imports for name in _imported(path, node)),
    )


def _lines(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _docstrings(tree: ast.Module) -> Iterator[ast.stmt]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            yield node.body[0]


def _sql(node: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Return the outermost SQL texts below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Constant, ast.JoinedStr)) and SQL.match(_text(child)):
            yield child
        else:
            yield from _sql(child)


def _text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(
        _text(part) if isinstance(part, ast.Constant) else ast.unparse(part) for part in node.values
    )


def _sql_difference(node: ast.Constant | ast.JoinedStr, lines: set[int]) -> int:
    """Return how many lines an SQL text counts more than the lines of code that it takes."""
    characters = len(" ".join(_text(node).split()))
    return -(-characters // SQL_LINE) - len(lines.intersection(_lines(node)))


def _imported(path: str, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    above = path.split("/")[: -node.level] if node.level else []
    origin = ".".join([*above, node.module] if node.module else above)
    for alias in node.names:
        yield f"{origin}.{alias.name}"
    yield origin


def summarise(sizes: dict[str, FileSize]) -> Iterator[str]:
    """Yield the lines about all files: kinds, imports, names and importers."""
    for kind in ORDER:
        files = [size for size in sizes.values() if size.kind == kind]
        lines, tokens = sum(size.lines for size in files), sum(size.tokens for size in files)
        yield f"{kind:<11} {lines:>6} lines {tokens:>7} tokens {len(files):>4} files"
    modules = {path: size for path, size in sizes.items() if size.kind == "python"}
    share = sum(size.imports for size in modules.values()) / sum_lines(modules, "python")
    names = Counter(Path(path).name for path in modules if not path.endswith("/__init__.py"))
    importers: Counter[str] = Counter()
    for path, size in modules.items():
        importers.update(size.imported - {_dotted(path)})
    # A package holds no code: who imports a module of it does not import the package.
    single = sum(
        importers[_dotted(path)] == 1 for path in modules if not path.endswith("/__init__.py")
    )
    yield f"imports     {share:>6.1%} of the lines of Python"
    yield f"names       {sum(times for times in names.values() if times > 1):>6} modules share one"
    yield f"importers   {single:>6} modules have exactly one"


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def sum_lines(sizes: dict[str, FileSize], kind: str) -> int:
    """Return the code lines of one kind."""
    return sum(size.lines for size in sizes.values() if size.kind == kind)


def find_excess(sizes: dict[str, FileSize], maximum: dict[str, int]) -> Iterator[str]:
    """Yield a message for each kind that has more lines than its maximum."""
    for kind in ORDER:
        lines = sum_lines(sizes, kind)
        if lines > maximum[kind]:
            yield (
                f"scripts/size.toml: {kind}: {lines} code lines, at most {maximum[kind]} "
                f"(remove code: 'scripts/size --files' lists the files)"
            )


def find_long(lines: dict[str, int], reasons: dict[str, str]) -> Iterator[str]:
    """Yield a message for each Python file that is too long without a reason.

    Args:
        lines: Lines of files, with docstrings, comments and blanks.
        reasons: Files that may be longer, with the reason.
    """
    for path, many in lines.items():
        if (many > MOST_LINES) != (path in reasons):
            problem = f"{many} lines, at most {MOST_LINES}" if many > MOST_LINES else "is not long"
            yield f"{path}: {problem} (split it by concept, or correct [long] in scripts/size.toml)"
    if len(reasons) > MOST_LONG:
        yield f"scripts/size.toml: [long] has more than {MOST_LONG} files"


def record(sizes: dict[str, FileSize], text: str) -> str:
    """Return the configuration with each maximum lowered to what the kind has."""
    for kind in ORDER:
        found = re.search(rf"^{kind} = (\d+)$", text, re.MULTILINE)
        if found and int(found[1]) > (lines := sum_lines(sizes, kind)):
            text = text.replace(found[0], f"{kind} = {lines}")
    return text


def main() -> int:
    """Print the sizes; return 1 if a kind is above its maximum."""
    parser = argparse.ArgumentParser(description="Counts the code lines of the product.")
    parser.add_argument("--files", metavar="PATH", nargs="?", const="", help="list the files")
    parser.add_argument("--record", action="store_true", help="lower the recorded maximum")
    arguments = parser.parse_args()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *LISTED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    sizes, lines = {}, {}
    asked = arguments.files or ""
    for path in (path for path in listed.stdout.split("\0") if path and path.startswith(asked)):
        if (ROOT / path).is_file() and Path(path).suffix in {".py", *KINDS}:
            text = (ROOT / path).read_text("utf-8")
            if path.endswith(".py"):
                lines[path] = text.count("\n")
            size = None if path.startswith("tests/") else measure(path, text)
            if size:
                sizes[path] = size
    if arguments.files is not None:
        for path, size in sorted(sizes.items(), key=lambda item: -item[1].lines):
            print(f"{size.lines:>6} {path}")
        print(f"{sum(size.lines for size in sizes.values()):>6} together")
        return 0
    for line in summarise(sizes):
        print(line)
    text = CONFIGURATION.read_text("utf-8")
    if arguments.record:
        CONFIGURATION.write_text(record(sizes, text), "utf-8")
    recorded = tomllib.loads(text)
    excess = [*find_excess(sizes, recorded["maximum"]), *find_long(lines, recorded["long"])]
    for message in excess:
        print(message, file=sys.stderr)
    return 1 if excess else 0


if __name__ == "__main__":
    # A reader that has seen enough, such as `head`, ends the program without a message.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
