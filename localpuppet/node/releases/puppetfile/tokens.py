"""Splits a Puppetfile into tokens and statements, as far as data needs them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|\\\r?\n)
    |(?P<comment>\#[^\n]*)
    |(?P<block>^=begin\b.*?(?:^=end\b[^\n]*|\Z))
    |(?P<stop>^__END__\r?$)
    |(?P<newline>\n)
    |(?P<string>'(?:[^'\\\n]|\\[^\n]){0,1024}+'|"(?:[^"\\\n]|\\[^\n]){0,1024}+")
    |(?P<label>[A-Za-z_]\w*:(?![:\w]))
    |(?P<symbol>:[A-Za-z_][\w-]*|:'[^'\n]*'|:"[^"\n]*")
    |(?P<arrow>=>)
    |(?P<comma>,)
    |(?P<open>[(\[{])
    |(?P<close>[)\]}])
    |(?P<word>[A-Za-z_]\w*[?!]?)
    |(?P<end>;)
    |(?P<other>.)""",
    re.VERBOSE | re.ASCII | re.DOTALL | re.MULTILINE,
)


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
        """The line on which it starts."""
        return self.tokens[0].line


def statements(text: str) -> Iterator[Statement]:
    """Yield the statements of a Puppetfile; a comma, an arrow or a bracket continues over lines."""
    tokens: list[Token] = []
    comments: dict[int, str] = {}
    depth = 0
    for token in _tokens(text, comments):
        if token.kind in ("newline", "end"):
            goes_on = depth > 0 or (tokens and tokens[-1].kind in ("comma", "arrow"))
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


def _tokens(text: str, comments: dict[int, str]) -> Iterator[Token]:
    line, position = 1, 0
    bare = True  # nothing but spaces on this line yet
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup == "stop":
            return
        kind = match.lastgroup or "other"
        if kind == "comment" and bare:
            comments[line] = match.group()[1:].strip()
        elif kind not in ("space", "comment", "block"):
            yield Token(kind, match.group(), line)
        bare = kind == "newline" or (bare and kind == "space")
        line += match.group().count("\n")
        position = match.end()


def _above(comments: Mapping[int, str], line: int) -> str:
    lines_above: list[str] = []
    while (line := line - 1) in comments:
        lines_above.append(comments[line])
    return "\n".join(reversed(lines_above)).strip()
