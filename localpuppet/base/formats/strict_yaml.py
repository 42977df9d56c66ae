"""Strict YAML: the subset that every reader interprets alike.

- One UTF-8 document; string keys; JSON types only.
- No anchors, aliases, merge keys, tags or duplicate keys.
- No plain scalar that PyYAML and Ruby's Psych read differently (both were tested).
- What programs write for Ruby (`ruby`) is read as Ruby does: aliases, merge keys, symbols as keys,
  and those scalars.
- An error names the line and the key, and no value: it may be a password.
- Values are built from parser events without recursion, so that depth and aliases cannot cost more
  than the length of the text.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import yaml

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import breadcrumb_key, one_line, shown_key
from localpuppet.base.formats.values import Json, type_names

MAX_DEPTH = 50
MAX_KEY = 255
# Characters that the aliases of a document may expand to.
MAX_EXPANSION = 4 * 1024 * 1024

_TRUE = frozenset(["true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"])
_FALSE = frozenset(["false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"])
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?[0-9]+\.[0-9]*(?:[eE][-+][0-9]+)?\Z")
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}(?:\Z|[Tt\s])")
# Starts like a number, and some YAML 1.1 reader takes it for a number (or a time of day).
_NUMBER_LIKE = re.compile(
    r"[-+]?(?:0[0-9_,]+|0[bB][01_,]+|0[xX][0-9a-fA-F_,]+|0o[0-7]+"
    r"|[0-9][0-9_,]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"
    r"|[0-9][0-9_,]*|[0-9][0-9_,]*\.[0-9_,]*(?:[eE][-+]?[0-9]+)?|\.[0-9_,]+(?:[eE][-+]?[0-9]+)?"
    r"|[0-9][0-9_,]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))\Z"
)
# Psych's own patterns for plain scalars (psych/scalar_scanner.rb).
_RUBY_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9]){1,2}(?P<float>\.[0-9_]*)?\Z")
_RUBY_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_,]*)?\.[0-9]*(?:[eE][-+][0-9]+)?\Z")
_RUBY_INTEGER = re.compile(
    r"[-+]?(?:0b[01_,]+|0[0-7_,]+|0x[0-9a-fA-F_,]+|0|[1-9](?:[0-9]|,[0-9]|_[0-9])*)\Z"
)
_ODD_BOOLEAN = re.compile(r"(?:true|false|yes|no|on|off)\Z", re.IGNORECASE)
# PyYAML's problem with a tab, or a reserved character.
_RESERVED = "cannot start any token"
# Contexts of PyYAML whose beginning does not explain the error.
_BLOCKS = ("block mapping", "block collection", "block sequence")
# Part of a problem → what to do.
_CURES = {
    "tab character": "use blanks",
    "expected ',' or": "close the bracket, or put a comma between two parts",
    "expected ':'": "write KEY: VALUE",
    "did not find expected": "indent the parts of one mapping or list equally",
    "mapping values": "indent the keys of one mapping equally, and quote a value with a colon",
    "end of stream": "close the quotes",
}
_DISAGREE = "YAML readers disagree on what this value is"
_NAN = frozenset((".nan", ".NaN", ".NAN"))
_BREAKS = re.compile("[\x85\u2028\u2029]|\r(?!\n)")


def parse(data: bytes, *, where: str, ruby: bool = False) -> Json:
    """Return the value of the one document in `data`.

    Args:
        data: UTF-8 YAML or JSON.
        ruby: Read what a program wrote for Ruby, such as an ENC's output, as Puppet does.

    Raises:
        InvalidInputError: The document is outside of the subset; the message names line or key.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(
            f"line {line}: is not UTF-8 (byte 0x{data[error.start]:02x})", where=where
        ) from error
    reader = _Reader(text, where, ruby=ruby)
    try:
        value = reader.document()
    except yaml.YAMLError as error:
        reader.refuse_foreign_breaks()  # they may have confused the parser
        raise InvalidInputError(explain(error, reader.text), where=where) from error
    reader.refuse_foreign_breaks()
    return value


def explain(error: yaml.YAMLError, text: str) -> str:
    """Return where and why a YAML parser failed.

    If a quoted text, a flow collection or a key has no end, the parser fails lines later: the place
    is then its beginning. Lines are those of editors: libyaml also counts U+2028.
    """
    context = getattr(error, "context", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
    mark = getattr(error, "problem_mark", None)
    if context and "expected" in problem and not context.endswith(_BLOCKS):
        mark = getattr(error, "context_mark", None) or mark
    words = one_line(f"{context}: {problem}" if context else str(problem))
    if _RESERVED in problem and mark is not None and mark.index < len(text):
        is_tab = text[mark.index] == "\t"
        words = "a tab cannot indent (use blanks)" if is_tab else "this text needs quotes"
    cure = next((f" ({cure})" for part, cure in _CURES.items() if part in problem), "")
    if mark is not None:
        column = mark.index - text.rfind("\n", 0, mark.index)
        return f"line {_line(text, mark.index)} column {column}: {words}{cure}"
    if isinstance(error, yaml.reader.ReaderError):
        # libyaml counts bytes.
        line = text.encode("utf-8", "surrogatepass").count(b"\n", 0, error.position) + 1
        return f"line {line}: invalid character: {words}"
    return words


def _line(text: str, index: int) -> int:
    return text.count("\n", 0, index) + 1


@dataclass(slots=True, eq=False)
class _Frame:
    """A mapping or list under construction."""

    container: "dict[str, Json] | list[Json]"
    anchor: str | None = None
    key: str = ""
    merges: bool = False  # the key is a merge key
    waiting: bool = False
    keys: set[str] = field(default_factory=set)
    size: int = 1


class _Reader:
    def __init__(self, text: str, where: str, *, ruby: bool) -> None:
        self.text = text
        self._where = where
        self._ruby = ruby
        self._anchors: dict[str, tuple[Json, int]] = {}
        self._stack: list[_Frame] = []
        self._result: Json = None
        self._quoted: list[tuple[int, int]] = []

    def document(self) -> Json:
        if self.text.startswith("\ufeff"):
            self.text = self.text[1:]
        documents = 0
        for event in self._events():
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(event, "a second document: only a single one is allowed")
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event)
            elif isinstance(event, yaml.ScalarEvent):
                self._no_extras(event)
                self._scalar(event)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._no_extras(event)
                self._open(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                frame = self._stack.pop()
                self._add_to_parent(event, frame.container, frame.size, frame.anchor)
        return self._result

    def _events(self) -> Iterator[yaml.Event]:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        return iter(yaml.parse(self.text, Loader=loader))

    def _refuse(self, event: yaml.Event, what: str, hint: str = "") -> NoReturn:
        crumb = self._breadcrumb()
        mark = event.start_mark
        line = f": line {_line(self.text, mark.index)}" if mark else ""
        place = f"{self._where}{line}"
        raise InvalidInputError(
            one_line(what), where=place + (f": {crumb}" if crumb else ""), hint=hint
        )

    def _breadcrumb(self) -> str:
        names = []
        for frame in self._stack:
            if isinstance(frame.container, list):
                names.append(f"[{len(frame.container)}]")
            elif frame.waiting:
                key = breadcrumb_key(frame.key)
                names.append(f".{key}" if names else key)
        return one_line("".join(names))[:200]

    def _no_extras(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        if event.anchor is not None and not self._ruby:
            self._refuse(event, "anchors (&name) are not allowed", "write the value out")
        if event.tag is not None:
            self._refuse(event, "tags are not allowed (!name)", "plain data only")

    def _alias(self, event: yaml.AliasEvent) -> None:
        if not self._ruby:
            self._refuse(event, "aliases (*name) are not allowed", "write the value out")
        frame = self._stack[-1] if self._stack else None
        is_key = frame is not None and isinstance(frame.container, dict) and not frame.waiting
        if is_key or event.anchor not in self._anchors:
            self._refuse(event, "an alias is a key, or is inside or before its own value")
        self._add_to_parent(event, *self._anchors[event.anchor])

    def _open(self, event: yaml.CollectionStartEvent) -> None:
        if len(self._stack) >= MAX_DEPTH:
            self._refuse(event, f"nested too deep: more than {MAX_DEPTH} levels")
        frame = self._stack[-1] if self._stack else None
        if frame and isinstance(frame.container, dict) and not frame.waiting:
            self._refuse(event, "a key must be a string, not a mapping or list")
        empty: dict[str, Json] | list[Json] = (
            {} if isinstance(event, yaml.MappingStartEvent) else []
        )
        self._stack.append(_Frame(empty, event.anchor))

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        quoted = bool(event.style)  # the parser gives None or "" for plain
        if event.style in ("'", '"') and event.start_mark and event.end_mark:
            self._quoted.append((event.start_mark.index, event.end_mark.index))
        frame = self._stack[-1] if self._stack else None
        if frame and isinstance(frame.container, dict) and not frame.waiting:
            self._key(event, frame, quoted=quoted)
            return
        value = event.value if quoted else self._plain(event)
        self._add_to_parent(event, value, 1 + len(event.value), event.anchor)

    def _key(self, event: yaml.ScalarEvent, frame: _Frame, *, quoted: bool) -> None:
        text = event.value
        if not quoted:
            if text == "<<" and self._ruby:
                frame.key, frame.merges, frame.waiting = text, True, True
                return
            if text == "<<":
                self._refuse(event, "merge keys (<<) are not allowed", "write the keys out")
            if self._ruby and re.match(r":[a-z]+\Z", text):
                text = text[1:]
            elif not isinstance(value := self._plain(event), str):
                kind = type_names[type(value)]
                self._refuse(event, f"a key must be a string, not a {kind}", "quote it")
        if len(text) > MAX_KEY:
            self._refuse(event, f"a key is longer than {MAX_KEY} characters")
        if text in frame.keys:
            self._refuse(event, f"duplicate key {shown_key(text)}", "keep one of them")
        frame.keys.add(text)
        frame.key, frame.merges, frame.waiting = text, False, True

    def _add_to_parent(
        self, event: yaml.Event, value: Json, size: int, anchor: str | None = None
    ) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, size)
        if not self._stack:
            self._result = value
            return
        frame = self._stack[-1]
        frame.size += size
        if frame.size > MAX_EXPANSION:
            self._refuse(event, f"aliases expand to more than {MAX_EXPANSION} characters")
        if isinstance(frame.container, list):
            frame.container.append(value)
            return
        if not frame.merges:
            frame.container[frame.key] = value
        elif isinstance(value, dict):
            frame.container |= value
        else:
            self._refuse(event, "a merge key (<<) needs a mapping")
        frame.waiting = False

    def _plain(self, event: yaml.ScalarEvent) -> Json:
        """Return the value of a plain scalar; reject it if readers disagree."""
        text = event.value
        if text in _NULL:
            return None
        if text in _TRUE:
            return True
        if text in _FALSE:
            return False
        if _INTEGER.match(text):
            return self._integer(event, text)
        if _FLOAT.match(text):
            number = float(text)
            if number in (float("inf"), float("-inf")):
                self._refuse(event, "the number is too large", "quote it")
            return number
        if _DATE.match(text):
            self._refuse(event, "is a date in YAML, a type Puppet refuses", "quote it")
        if text[0] == ":" or text in _NAN:
            self._refuse(event, _DISAGREE, "quote it")
        if text == "=" or _NUMBER_LIKE.match(text) or _ODD_BOOLEAN.match(text):
            return self._disputed(event, text)
        return str(text)

    def _disputed(self, event: yaml.ScalarEvent, text: str) -> Json:
        """Return what Psych reads in a plain scalar on which readers disagree."""
        if not self._ruby or text.lower().endswith("inf"):
            self._refuse(event, _DISAGREE, "quote it")
        if _ODD_BOOLEAN.match(text):
            return text.lower() in ("true", "yes", "on")
        digits = re.sub("[_,]", "", text)
        if match := _RUBY_BASE_60.match(text):  # a MAC address has more parts, and is text
            pairs = list(zip(digits.split(":"), (3600, 60, 1), strict=False))
            if match["float"]:
                return sum(float(part) * seconds for part, seconds in pairs)
            whole = sum(int(part) * seconds for part, seconds in pairs)
            return self._integer(event, str(whole))
        if _RUBY_FLOAT.match(text):
            return float(digits)
        if not _RUBY_INTEGER.match(text):
            return str(text)
        sign, base = digits[0] == "-", {"b": 2, "x": 16}.get(digits.lstrip("+-")[1:2])
        number = int(digits, base or (8 if digits.lstrip("+-")[0] == "0" else 10))
        return self._integer(event, str(-abs(number) if sign else number))

    def _integer(self, event: yaml.ScalarEvent, text: str) -> int:
        # CPython's int() raises ValueError for more than 4300 digits.
        number = int(text) if len(text) <= 20 else 2**64
        if not -(2**63) <= number < 2**63:
            self._refuse(event, "the integer is too large for 64 bits", "quote it")
        return number

    def refuse_foreign_breaks(self) -> None:
        """Reject characters that only some readers, and few people, take for line breaks.

        Three are breaks in YAML 1.1 and text in 1.2. A carriage return alone is a break in both,
        but an editor shows the following text in the same line, for example inside a comment.
        """
        for match in _BREAKS.finditer(self.text):
            index = match.start()
            # Quoted scalars are sorted by their end: find the first that ends after the index.
            nearest = bisect_right(self._quoted, index, key=lambda span: span[1])
            in_quotes = nearest < len(self._quoted) and self._quoted[nearest][0] < index
            if match.group() in "\x85\r" or not in_quotes:
                line = _line(self.text, index)
                raise InvalidInputError(
                    f"YAML readers disagree on the character U+{ord(match.group()):04X}",
                    where=f"{self._where}: line {line}",
                    hint=f'write "\\u{ord(match.group()):04x}" in double quotes',
                )
