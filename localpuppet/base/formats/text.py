"""Texts of one line from outside, and texts that people read."""

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from localpuppet.base.errors import InvalidInputError

if TYPE_CHECKING:
    from urllib.parse import SplitResult


MAX_LINE_BYTES = 1024
SHOWN_NAMES = 5

# Patterns are texts, compiled at first use: see `names`.
# What sets a colour on a terminal.
_STYLE = "\x1b\\[[0-9;?]*[A-Za-z]"
# Characters that reorder or hide text, and the two Unicode line breaks.
_HIDING = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff"
_DECEPTIVE = f"{_HIDING}\u2028\u2029"
# C0 except newline and tab, DEL and C1: a terminal would act on them.
_UNSAFE = f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_DECEPTIVE}\ud800-\udfff]"
_UNSAFE_IN_LINE = f"[\x00-\x1f\x7f-\x9f{_DECEPTIVE}\ud800-\udfff]"
# These, blanks of other widths, and what no font draws: two texts that differ look alike.
_UNSEEN = (
    "[\x00-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f"
    "\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

# What ends a line, what shows nothing at its start, and what is an IPv6 address to its end.
_BREAK = "\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"
_CONTROL = "\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad\u180e\u200b-\u200d\u2060-\u2065"
_NOTHING = f"(?:{_STYLE}|\x1b\\[[0-9;?]*\\Z|[^\\S{_BREAK}]|[{_CONTROL}{_HIDING}])*+"
_ADDRESS = (
    f"[0-9a-f./][0-9a-f.]{{0,15}}(?::[0-9a-f.]{{1,15}}){{0,7}}(?:/\\d{{1,3}})?[ \t]*[{_BREAK}]"
)
# What runners of CI take for a command: of GitHub; of Azure and TeamCity; of GitLab and Travis.
_COMMAND = (
    f"(?:\\A|[{_BREAK}]){_NOTHING}::(?!{_ADDRESS})"
    "|##\\w{0,24}\\[|(?:section_(?:start|end)|travis_(?:fold|time)):"
)
_MARKS = ("::", "##", "section_", "travis_")  # one is in each command

_NAME = r"[A-Za-z_][A-Za-z0-9_:./-]{0,79}\Z"


def _escaped(match: "re.Match[str]") -> str:
    code = ord(match.group())
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def printable(text: str) -> str:
    r"""Return `text` with the characters that control a terminal escaped (`\x1b`).

    Newlines and tabs stay.
    """
    return re.sub(_UNSAFE, _escaped, text)


def one_line(text: str) -> str:
    """Return `text` as one printable line."""
    return re.sub(_UNSAFE_IN_LINE, _escaped, text)


def visible(text: str) -> str:
    """Return `text` as one line in which each character shows, so that two texts look different."""
    return re.sub(_UNSEEN, _escaped, text)


def without_commands(text: str, before: str = "\n") -> tuple[str, str]:
    r"""Return `text` without commands for a CI runner, and what the next text needs as `before`.

    The last character of a command's start is escaped as in JSON, where it stays equal.

    Args:
        text: A part of the output, not always whole lines.
        before: What matters of the output before it.
    """
    if text.endswith("\n") and not any(mark in before + text for mark in _MARKS):
        return text, "\n"
    whole = re.sub(_COMMAND, lambda m: f"{m[0][:-1]}\\u{ord(m[0][-1]):04x}", before + text)
    last = re.split(f"[{_BREAK}]", whole[-256:])[-1]
    starts = re.fullmatch(f"{_NOTHING}:?", last)
    return whole[
        len(before) :
    ], f"\n{last[last.rfind(chr(27)) :][-32:]}" if starts else f"x{last[-32:]}"


def joined(text: str) -> str:
    """Return another program's text as one line: no colours, lines joined by semicolons."""
    lines = [line.strip() for line in re.sub(_STYLE, "", text).replace("\r", "\n").splitlines()]
    return one_line("; ".join(filter(None, lines)))


def last_words(data: bytes, *, most: int) -> str:
    """Return another program's output as `joined` does; the end of it if it is long."""
    whole = joined(data.decode("utf-8", "replace"))
    return whole if len(whole) <= most else f"…{whole[1 - most :]}"


def shortened(text: str, most: int) -> str:
    """Return a text as one printable line of at most `most` characters."""
    line = one_line(text[: most + 1])
    return line if len(line) <= most else f"{line[: most - 1]}…"


def cut_to_bytes(text: str, most: int) -> str:
    """Return the beginning of a text that has at most `most` bytes in UTF-8."""
    return text.encode()[:most].decode(errors="ignore")


def without_middle(text: str, *, most: int) -> str:
    """Return a text; if it exceeds `most` characters, only its beginning and end."""
    end = most // 2
    return text if len(text) <= most else f"{text[: most - end - 3]} … {text[-end:]}"


def folded(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines, equal adjacent ones once with their number: `Error: no disk (×18)`."""
    for line, equal in groupby(lines):
        count = sum(1 for _ in equal)
        yield f"{line} (×{count})" if count > 1 and line else line


def shown_key(key: str) -> str:
    """Return a key for a message; its text only if it has the form of a name.

    A user may pass any file: the text in the place of a key may be a secret.
    """
    return repr(key) if re.match(_NAME, key) else f"of {len(key)} characters"


def breadcrumb_key(key: str) -> str:
    """Return a key as part of a breadcrumb; see `shown_key`."""
    return key if re.match(_NAME, key) else f"(a key of {len(key)} characters)"


def listed(text: str) -> tuple[str, ...]:
    """Return the words of a text, such as a table of names."""
    return tuple(text.split())


def shown_names(names: Sequence[str]) -> str:
    """Return the first names and the number of others: `a, b, c, d, e and 3 more`."""
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"{', '.join(names[:SHOWN_NAMES])}{more}"


def parse_line(text: str, *, what: str) -> str:
    """Return `text` if it may be stored and printed later, as the reason of a hold may.

    Raises:
        InvalidInputError: The text is empty, longer than 1 KiB of UTF-8, or has a control
            character, a line break or a character that reorders text.
    """
    if not text.strip():
        raise InvalidInputError(f"the {what} is empty", hint="say why, in one line")
    if len(text.encode("utf-8", "surrogatepass")) > MAX_LINE_BYTES:
        raise InvalidInputError(f"the {what} is too long: the limit is {MAX_LINE_BYTES} bytes")
    unsafe = re.search(_UNSAFE_IN_LINE, text)
    if unsafe:
        raise InvalidInputError(
            f"the {what} has a control character or newline ({_escaped(unsafe)})",
            hint="write one plain line",
        )
    return text


def split_url(url: str, *, where: str) -> "SplitResult":
    """Return the parts of a URL whose port is valid.

    Raises:
        InvalidInputError: The text is not a URL, or has an IPv6 address without brackets.
    """
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        host, _, last = parts.netloc.rpartition(":")
        if ":" in host and not {"[", "@"} & {*parts.netloc}:
            raise InvalidInputError(
                "an IPv6 address in a URL needs brackets",
                where=where,
                hint=f"write {parts.scheme}://[{host}]:{last}",
            )
        _ = parts.port
    except ValueError as error:
        raise InvalidInputError(f"is not a URL: {error}", where=where) from error
    return parts


def url_without_secrets(url: str) -> str:
    """Return a URL without the parts that may be secret: user, password, query."""
    scheme, colon, rest = url.partition("://")
    if not colon:
        scheme, rest = "", url
    host, slash, path = rest.partition("/")
    return f"{scheme}{colon}{host.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


MAX_SHOWN = 60

Choice = TypeVar("Choice", bound=StrEnum)


def parse_choice(kind: type[Choice], text: str, *, what: str, hint: str = "") -> Choice:
    """Return the member of an enumeration that a text names.

    Args:
        what: A description of the value for the message: "a way to take a resource".
        hint: What to do besides writing one of the members.

    Raises:
        InvalidInputError: The text is not a member; the message lists all members.
    """
    try:
        return kind(text)
    except ValueError as error:
        raise InvalidInputError(
            f"{text[:MAX_SHOWN]!r} is not {what}",
            hint="; ".join(filter(None, [f"use one of {', '.join(kind)}", hint])),
        ) from error
