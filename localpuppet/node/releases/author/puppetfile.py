"""Parses the part of a Puppetfile that is data, as r10k and g10k read it.

The grammar covers `mod` in all its forms, `moduledir`, `forge` and comments. Code such as a
variable, a condition or an interpolation is reported with its line and never evaluated; the rest is
read. A missing comma, which changes what an entry says, is an error.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from urllib.parse import urlsplit

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.value import Value

_PUBLIC = {
    f"{host}.{site}.com" for host in ("forge", "forgeapi") for site in ("puppet", "puppetlabs")
}


class PuppetfileEntry(Value):
    """One `mod` of a Puppetfile.

    Attributes:
        version: Its second argument, `latest` for `:latest`; empty without one.
        comment: The comment right above it, without `#`.
        left: Why it cannot be read.
        moduledir: The `moduledir` above it; `None` without one.
    """

    name: str
    line: int
    version: str = ""
    options: Mapping[str, str]
    comment: str = ""
    left: str = ""
    moduledir: str | None = None


class Puppetfile(Value):
    """A Puppetfile; `notes` has unsupported code by line."""

    entries: tuple[PuppetfileEntry, ...]
    forge: str = ""
    notes: Mapping[int, str]

    @property
    def has_other_forge(self) -> bool:
        """Whether it names another forge than the public one, under any name that that has had."""
        try:
            return bool(self.forge) and urlsplit(self.forge).hostname not in _PUBLIC
        except ValueError:
            return True


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|\\\r?\n)
    |(?P<comment>\#[^\n]*)
    |(?P<block>^=begin\b.*?(?:^=end\b[^\n]*|\Z))
    |(?P<stop>^__END__\r?$|[\0\x04\x1a])
    |(?P<heredoc><<[~-]?(?P<quote>['"`]?)(?P<tag>[A-Za-z_]\w*)(?P=quote)[^\n]*)
    |(?P<newline>\n)
    |(?P<string>'(?:[^'\\]|\\.){0,1024}+'|"(?:[^"\\]|\\.){0,1024}+")
    |(?P<shell>`(?:[^`\\]|\\.){0,1024}+`)
    |(?P<label>[A-Za-z_]\w*:(?![:\w]))
    |(?P<symbol>:[A-Za-z_][\w-]*|:'[^'\n]*'|:"[^"\n]*")
    |(?P<arrow>=>)
    |(?P<comma>,)
    |(?P<open>[(\[{])
    |(?P<close>[)\]}])
    |(?P<word>[A-Za-z_]\w*[?!]?)
    |(?P<end>;)
    |(?P<method>&?\.\s*[A-Za-z_]\w*[?!]?)
    |(?P<number>[0-9]\w*)
    |(?P<other>.)""",
    re.VERBOSE | re.ASCII | re.DOTALL | re.MULTILINE,
)
RUBY = "uses Ruby code ('--evaluate' runs it)"
INSIDE = "is inside Ruby code ('--evaluate' runs it)"
# What opens a block at any place, and what does so only where a value is not yet complete.
_OPENING = ("do", "case", "for", "def", "begin", "class", "module")
_OPENING_OR_MODIFIER = ("if", "unless", "while", "until")
_INCOMPLETE = ("and", "or", "not", "then", "else", "elsif", "when", "do", "begin", "if", "unless")
_ENDS = ("string", "symbol")
_BEGINS = ("string", "symbol", "label")
_HASH_ROCKET = ["symbol", "arrow"]
_SINGLE_ESCAPE = re.compile(r"\\([\\'])")
_DOUBLE_ESCAPE = re.compile(r'\\([\\"])')


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its kind, its text and its line."""

    kind: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Statement:
    """Tokens up to the end of a statement, and the comment right above them."""

    tokens: tuple[Token, ...]
    comment: str

    @property
    def line(self) -> int:
        return self.tokens[0].line


def statements(text: str) -> Iterator[Statement]:
    """Yield the statements of a Puppetfile; a comma, an arrow or a bracket continues over lines."""
    tokens: list[Token] = []
    comments: dict[int, str] = {}
    depth = 0
    for token in _tokens(text, comments):
        if token.kind in ("newline", "end"):
            goes_on = depth > 0 or (tokens and _is_incomplete(tokens))
            if tokens and not goes_on:
                yield Statement(tuple(tokens), _above(comments, tokens[0].line))
                tokens, depth = [], 0
            continue
        if tokens and tokens[-1].kind == "comma" and _begins(token):
            yield Statement(tuple(tokens), _above(comments, tokens[0].line))
            tokens, depth = [], 0
        depth += (token.kind == "open") - (token.kind == "close")
        tokens.append(token)
    if tokens:
        yield Statement(tuple(tokens), _above(comments, tokens[0].line))


def _begins(token: Token) -> bool:
    """Return whether a token begins a statement although a comma precedes it."""
    return token.kind == "word" and token.text in ("mod", "forge", "moduledir")


def _is_incomplete(tokens: Sequence[Token]) -> bool:
    """Return whether Ruby reads on in the next line; one `|` ends the parameters of a block."""
    last = tokens[-1]
    if last.text == "|":
        return [token.text for token in tokens[-2:]] == ["|", "|"]
    return last.kind in ("comma", "arrow", "other") or last.text in ("and", "or", "not")


def _tokens(text: str, comments: dict[int, str]) -> Iterator[Token]:
    line, position = 1, 0
    bare = True  # nothing but spaces on this line yet
    closes = True
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup == "stop":
            return
        kind = match.lastgroup or "other"
        if kind == "comment" and bare:
            comments[line] = match.group()[1:].strip()
        elif kind not in ("space", "comment", "block"):
            yield Token(kind, match.group(), line)
        end = match.end()
        if kind == "heredoc" and closes:
            last = re.compile(rf"^[ \t]*{match['tag']}\r?$", re.MULTILINE)
            closing = last.search(text, end)
            # What does not end is `list <<item`; the search is not repeated.
            closes, end = closing is not None, closing.end() if closing else end
        bare = kind == "newline" or (bare and kind == "space")
        line += text.count("\n", position, end)
        position = end


def _above(comments: Mapping[int, str], line: int) -> str:
    lines_above: list[str] = []
    while (line := line - 1) in comments:
        lines_above.append(comments[line])
    return "\n".join(reversed(lines_above)).strip()


class _RubyError(Exception):
    """The following text is code and not data."""


def parse(text: str) -> Puppetfile:
    """Return the entries of a Puppetfile; unreadable parts are named in the result."""
    entries: list[PuppetfileEntry] = []
    notes: dict[int, str] = {}
    settings: dict[str, str | None] = {"moduledir": None, "forge": ""}
    place = ""  # why it is unknown where modules go
    depth, before = 0, ""
    for statement in statements(text.removeprefix("\ufeff")):
        first = statement.tokens[0]
        word = first.text if first.kind == "word" else ""
        opened = _opened(statement.tokens)
        _refuse_missing_comma(statement.tokens, before=before)
        before = word
        if word == "mod" and opened <= 0:
            entry = _entry(statement, left=INSIDE if depth > 0 else place)
            entries.append(replace(entry, moduledir=settings["moduledir"]))
        elif word in settings and depth == 0:
            try:
                (settings[word],) = _values(statement.tokens[1:])
                place = "" if word == "moduledir" else place
            except (_RubyError, ValueError):
                notes[first.line] = f"the {word} here {RUBY}"
                place = f"the moduledir above it {RUBY}" if word == "moduledir" else place
        else:
            if any(token.text == "moduledir" for token in statement.tokens):
                place = f"the moduledir above it {RUBY}"
            if depth == 0:
                shown = " ".join(token.text for token in statement.tokens)
                notes[first.line] = f"{_short(shown)} is Ruby code ('--evaluate' runs it)"
            # Entries that are behind a block opened in one line come with it.
            depth = max(0, depth + opened)
    return Puppetfile(entries=tuple(entries), forge=settings["forge"] or "", notes=notes)


def _refuse_missing_comma(tokens: Sequence[Token], *, before: str) -> None:
    """Reject `git: 'URL' tag: 'v1'`, also over two lines; `before` begins the last statement."""
    pairs = pairwise(tokens) if tokens[0].text == "mod" else ()
    missing = [second for first, second in pairs if first.kind in _ENDS and second.kind in _BEGINS]
    is_rest = tokens[0].kind == "label" or [token.kind for token in tokens[:2]] == _HASH_ROCKET
    for token in [tokens[0]] if is_rest and before == "mod" else missing:
        raise InvalidInputError(
            f"a comma is missing before {_short(token.text)}", where=f"line {token.line}"
        )


def _short(text: str) -> str:
    return repr(text[:30] + ("…" if len(text) > 30 else ""))


def _opened(tokens: Sequence[Token]) -> int:
    """Return how many blocks a statement opens, minus those that it closes; rather one too many."""
    opened = 0
    before = Token("open", "", 0)
    for token in tokens:
        if token.kind == "word":
            opened += token.text in _OPENING
            opened -= token.text == "end"
            opened += token.text in _OPENING_OR_MODIFIER and _expects_a_value(before)
        before = token
    return opened


def _expects_a_value(token: Token) -> bool:
    kinds = ("open", "comma", "arrow", "label", "other")
    return token.kind in kinds or token.text in _INCOMPLETE


def _entry(statement: Statement, *, left: str) -> PuppetfileEntry:
    tokens = list(statement.tokens[1:])
    plain = next((token for token in tokens if token.kind == "string"), None)
    name = "?"
    version = ""
    options: dict[str, str] = {}
    try:
        if plain is not None and tokens.index(plain) <= 1:
            name = _string(plain)
        version, options = _arguments(tokens)
    except _RubyError:
        left = left or RUBY
    return PuppetfileEntry(
        name=name,
        line=statement.line,
        version=version,
        options=options,
        comment=statement.comment,
        left=left,
    )


def _arguments(tokens: list[Token]) -> tuple[str, dict[str, str]]:
    """Return the version and the options of a `mod`."""
    if tokens and tokens[0].text == "(" and tokens[-1].text == ")":
        tokens = tokens[1:-1]
    tokens = [token for token in tokens if token.text not in "{}"]
    parts = _split(tokens)
    if not parts or len(parts[0]) != 1 or parts[0][0].kind != "string":
        raise _RubyError
    _string(parts[0][0])
    version = ""
    options: dict[str, str | None] = {}  # of equal names, Ruby takes the last, too
    for number, part in enumerate(parts[1:]):
        if len(part) == 1 and number == 0:
            version = _value(part[0])
        elif len(part) == 2 and part[0].kind == "label":
            options[part[0].text[:-1]] = _option(part[1])
        elif len(part) == 3 and part[1].kind == "arrow":
            options[_value(part[0])] = _option(part[2])
        else:
            raise _RubyError
    return version, {name: value for name, value in options.items() if value is not None}


def _split(tokens: Sequence[Token]) -> list[list[Token]]:
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token.kind == "comma":
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


def _values(tokens: Sequence[Token]) -> list[str]:
    return [_value(token) for token in tokens if token.text not in ("(", ")")]


def _option(token: Token) -> str | None:
    return None if token.text == "nil" else _value(token)


def _value(token: Token) -> str:
    if token.kind == "string":
        return _string(token)
    if token.kind == "symbol":
        return token.text[1:].strip("'\"")
    if token.kind == "word" and token.text in ("true", "false", "nil"):
        return "" if token.text == "nil" else token.text
    raise _RubyError


def _string(token: Token) -> str:
    inner = token.text[1:-1]
    if token.text.startswith("'"):
        return _SINGLE_ESCAPE.sub(r"\1", inner)
    if re.search(r"#[{$@]", inner) or "\\" in _DOUBLE_ESCAPE.sub("", inner):
        raise _RubyError
    return _DOUBLE_ESCAPE.sub(r"\1", inner)
