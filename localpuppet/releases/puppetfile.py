"""A Puppetfile as r10k and g10k read it: the part of it that is data.

Owns: the grammar (`mod` with git options, `moduledir`, `forge`, comments) and which tag a module
can be imported at. Refuses to know: Ruby, which is never evaluated; the disk; git. What is no
data, such as a variable, a condition or an interpolation, is refused with its line.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from localpuppet.errors import InvalidInputError
from localpuppet.releases.git.names import GitUrl, Tag, parse_module_name

DEFAULT = "default branch"
_REFS = ("tag", "ref", "commit", "branch")
_HINT = "no Ruby is evaluated: write plain mod '…', :git => '…', :tag => '…'"

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|\#[^\n]*)
    |(?P<newline>\n)
    |(?P<string>'[^'\\\n]*+(?:\\[^\n][^'\\\n]*+)*+'|"[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+")
    |(?P<label>[A-Za-z_]\w*:(?!:))
    |(?P<symbol>:[A-Za-z_][\w-]*)
    |(?P<arrow>=>)
    |(?P<comma>,)
    |(?P<word>[A-Za-z_]\w*)""",
    re.VERBOSE | re.ASCII,
)
MAX_STRING = 4096  # characters; more than a URL or a name has
_OTHER = re.compile(r"[^\n]+")
_SINGLE_ESCAPE = re.compile(r"\\([\\'])")
_DOUBLE_ESCAPE = re.compile(r'\\([\\"])')
_ABBREVIATED = re.compile(r"[0-9a-f]{7,40}\Z")
_VERSION = re.compile(r"(?:[a-z]+[-_]?)?(\d+(?:\.\d+)*)\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A git module of a Puppetfile.

    Attributes:
        name: The module's own name, without its owner.
        url: Its repository.
        kind: `tag`, `ref`, `commit`, `branch`, or `default branch` when it names none of them.
        ref: What it names; empty for the default branch.
        line: Where it starts.
    """

    name: str
    url: GitUrl
    kind: str
    ref: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a module can be imported at.

    Attributes:
        module: The module.
        tag: The tag that it names; `None` when it names something that is no tag.
        commit: What the repository says that the ref is; empty when it was not asked or does not
            know.
        tags: Tags that point at that commit, the one to take first.
    """

    module: Module
    tag: Tag | None
    commit: str
    tags: tuple[Tag, ...]


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


def parse(text: str, *, allow_file: bool) -> tuple[Module, ...]:
    """Return the modules of a Puppetfile, in its order.

    `moduledir` and `forge` are read and mean nothing here: a release has its modules beside its
    own, and none from a forge.

    Args:
        text: The Puppetfile.
        allow_file: Whether `file://` URLs are allowed.

    Raises:
        InvalidInputError: Something is no data, no git module, or outside its grammar.
    """
    reader = _Reader(_tokens(text))
    modules: dict[str, Module] = {}
    while (word := reader.statement()) is not None:
        if word.text == "mod":
            module = _module(reader, word.line, allow_file=allow_file)
            other = modules.setdefault(module.name, module)
            if other is not module:
                raise InvalidInputError(
                    f"the module {module.name!r} is there twice",
                    where=f"line {word.line}",
                    hint=f"the first is in line {other.line}: keep one of them",
                )
        elif word.text in ("moduledir", "forge"):
            reader.string(f"{word.text} needs")
            reader.end()
        else:
            raise _ruby(word)
    return tuple(modules.values())


def _tokens(text: str) -> list[_Token]:
    tokens = []
    line = 1
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position) or _OTHER.match(text, position)
        if match is None:
            raise AssertionError("one of the two matches whatever is left")
        kind = match.lastgroup or "other"
        if kind != "space":
            tokens.append(_Token(kind, match.group(), line))
        if kind == "newline":
            line += 1
        position = match.end()
    tokens.append(_Token("end", "the end", line))
    return tokens


def _ruby(token: _Token) -> InvalidInputError:
    return InvalidInputError(
        f"{token.text[:40]!r} is more than a list of modules",
        where=f"line {token.line}",
        hint=_HINT,
    )


class _Reader:
    """Walks over the tokens; a newline ends a statement unless a comma or arrow is before it."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next += token.kind != "end"
        return token

    def _look(self) -> _Token:
        return self._tokens[self._next]

    def lines(self) -> bool:
        """Go over newlines; return whether there were any."""
        before = self._next
        while self._look().kind == "newline":
            self._next += 1
        return self._next > before

    def statement(self) -> _Token | None:
        """Return the word that begins the next statement; `None` at the end."""
        self.lines()
        token = self._take()
        if token.kind == "end":
            return None
        if token.kind != "word":
            raise _ruby(token)
        return token

    def end(self) -> None:
        """Refuse what follows in a statement that is complete."""
        if self._look().kind not in ("newline", "end"):
            raise _ruby(self._look())

    def more(self) -> bool:
        """Return whether a comma and one more argument follow; a trailing comma is fine."""
        if self._look().kind != "comma":
            self.end()
            return False
        self._next += 1
        ended = self.lines() and self._look().kind == "word"
        return not ended and self._look().kind != "end"

    def string(self, before: str) -> str:
        """Return the string that must come now."""
        token = self._take()
        if token.kind != "string":
            raise InvalidInputError(
                f"{before} a string in quotes, not {token.text.strip()[:40]!r}",
                where=f"line {token.line}",
                hint=_HINT,
            )
        return _unquoted(token)

    def key(self) -> tuple[str, int]:
        """Return the name and line of the option that must come now, `:git =>` or `git:`."""
        token = self._take()
        if token.kind == "string":
            raise InvalidInputError(
                f"a version ({token.text[:40]}) makes it a module of the forge",
                where=f"line {token.line}",
                hint="name its repository: :git => 'https://…', :tag => '…'",
            )
        if token.kind == "label":
            self.lines()
            return token.text[:-1], token.line
        if token.kind != "symbol":
            raise _ruby(token)
        arrow = self._take()
        if arrow.kind != "arrow":
            raise _ruby(arrow)
        self.lines()
        return token.text[1:], token.line


def _unquoted(token: _Token) -> str:
    inner = token.text[1:-1]
    if len(inner) > MAX_STRING:
        raise InvalidInputError(
            f"a string of {len(inner)} characters: the limit is {MAX_STRING}",
            where=f"line {token.line}",
        )
    if token.text.startswith("'"):
        return _SINGLE_ESCAPE.sub(r"\1", inner)
    if re.search(r"#[{$@]", inner) or "\\" in _DOUBLE_ESCAPE.sub("", inner):
        raise InvalidInputError(
            f"{token.text[:40]} has an interpolation or escape",
            where=f"line {token.line}",
            hint=_HINT,
        )
    return _DOUBLE_ESCAPE.sub(r"\1", inner)


def _module(reader: _Reader, line: int, *, allow_file: bool) -> Module:
    where = f"line {line}"
    full = reader.string("mod needs")
    _, separator, rest = full.replace("/", "-", 1).partition("-")
    name = parse_module_name(rest if separator else full, where=where)
    options: dict[str, str] = {}
    while reader.more():
        key, key_line = reader.key()
        if key not in ("git", *_REFS):
            raise InvalidInputError(
                f"the option {key!r} of {full!r} cannot be imported",
                where=f"line {key_line}",
                hint="a module in a manifest has git and tag; take the option away",
            )
        if key in options:
            raise InvalidInputError(f"{key!r} is there twice", where=f"line {key_line}")
        options[key] = reader.string(f"{key!r} needs")
    if "git" not in options:
        raise InvalidInputError(
            f"{full!r} is a module of the forge: it names no git repository",
            where=where,
            hint="name it: :git => 'https://…', :tag => '…'",
        )
    named = [(kind, options[kind]) for kind in _REFS if kind in options]
    if len(named) > 1:
        raise InvalidInputError(
            f"{full!r} has both {named[0][0]!r} and {named[1][0]!r}",
            where=where,
            hint="keep one of them",
        )
    kind, ref = named[0] if named else (DEFAULT, "")
    url = GitUrl.parse(options["git"], where=where, allow_file=allow_file)
    if kind == "tag":
        Tag.parse(ref, where=where)
    return Module(name=name, url=url, kind=kind, ref=ref, line=line)


def choose(module: Module, refs: Mapping[str, str]) -> Choice:
    """Return what a module can be imported at.

    Args:
        module: The module.
        refs: Full name of each ref of its repository, and HEAD, → the commit behind it; not
            looked at for a module that names a tag.
    """
    if module.kind == "tag":
        return Choice(module=module, tag=Tag(module.ref), commit="", tags=())
    tagged = {
        tag: commit
        for name, commit in refs.items()
        if name.startswith("refs/tags/") and (tag := _tag(name.removeprefix("refs/tags/")))
    }
    if module.kind == "ref" and module.ref in tagged:
        tag = Tag(module.ref)
        return Choice(module=module, tag=tag, commit=tagged[tag], tags=())
    commit = _commit(module, refs)
    tags = sorted((tag for tag in tagged if commit and tagged[tag] == commit), key=_preference)
    return Choice(module=module, tag=None, commit=commit, tags=tuple(tags))


def _tag(text: str) -> Tag | None:
    try:
        return Tag.parse(text, where="")
    except InvalidInputError:
        return None  # a name that no manifest can have


def _commit(module: Module, refs: Mapping[str, str]) -> str:
    """Return the commit that a branch, commit or ref is; empty when that is not known."""
    if module.kind == DEFAULT:
        return refs.get("HEAD", "")
    if module.kind != "commit":
        branch = refs.get(f"refs/heads/{module.ref.removeprefix('origin/')}")
        if branch or module.kind == "branch":
            return branch or ""
    if not _ABBREVIATED.match(module.ref):
        return ""
    found = {commit for commit in refs.values() if commit.startswith(module.ref)}
    if len(found) == 1:
        return found.pop()
    return module.ref if len(module.ref) == 40 else ""


def _preference(tag: Tag) -> tuple[bool, list[int], str]:
    """Sort versions first, the highest of them first: `stable` is a name that moves."""
    match = _VERSION.match(tag)
    numbers = [-int(number) for number in match.group(1).split(".")] if match else []
    return (match is None, numbers, tag)
