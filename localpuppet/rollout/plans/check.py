"""A check that a part of an application works: a URL that answers, or a command that exits 0.

    http://%{node}:8080/health
    [/usr/local/bin/probe, '%{node}']

- `%{node}` is replaced by the node's name.
- A command is an argument vector, without a shell.
- `rollout.execution.probing` runs checks.
"""

import re
import shlex
from urllib.parse import urlsplit

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import shown_key, url_without_secrets
from localpuppet.base.formats.values import Json, at, wrong_type

MAX_WORDS = 64  # in a command
MAX_CHECK = 4096  # characters of a URL, or of all words together
_PLACEHOLDER = re.compile(r"%\{([^}]*)\}")
_URL = re.compile(r"https?://[^\s/@]+(?:/\S*)?\Z")

Check = str | tuple[str, ...]


def parse_check(value: Json, where: str) -> Check:
    """Return the check in a document: a URL, or a list of words.

    Raises:
        InvalidInputError: The value is neither, is too long, or has an unknown placeholder.
    """
    if isinstance(value, str):
        return _url(value, where, hint="write a command as a list: [/usr/local/bin/probe, --fast]")
    if not isinstance(value, list):
        raise wrong_type(value, "a URL or a list", where)
    if len(value) > MAX_WORDS:
        raise InvalidInputError(
            f"has {len(value)} elements; at most {MAX_WORDS} are allowed", where=where
        )
    words = tuple(_word(word, at(where, index)) for index, word in enumerate(value))
    if not words or not words[0].startswith("/"):
        raise InvalidInputError(
            "is not a command: a list whose first element is a path", where=where
        )
    _refuse_long("".join(words), where)
    return words


def parse_text(text: str, *, where: str) -> Check:
    """Return the check that a person wrote as one text: a URL, or a command line.

    Quotes work as in a shell; other shell syntax does not.

    Raises:
        InvalidInputError: The text is neither.
    """
    if text.startswith(("http://", "https://")):
        return parse_check(text, where)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidInputError(f"has unbalanced quotes: {error}", where=where) from error
    if not words or not words[0].startswith("/"):
        raise InvalidInputError(
            "is neither an http or https URL nor a command that begins with a path",
            where=where,
            hint="--check 'http://%{node}/health' or --check '/usr/local/bin/probe %{node}'",
        )
    return parse_check([*words], where)


def on_node(check: Check, node: NodeName) -> Check:
    """Return the check of one node, with `%{node}` replaced."""
    if isinstance(check, str):
        return check.replace("%{node}", node)
    return tuple(word.replace("%{node}", node) for word in check)


def shown(check: Check) -> str:
    """Return a check for messages, without arguments and queries, which may be secret."""
    return url_without_secrets(check) if isinstance(check, str) else check[0]


def to_json(check: Check) -> str | list[str]:
    """Return the JSON form."""
    return check if isinstance(check, str) else list(check)


def _url(text: str, where: str, *, hint: str) -> str:
    _placeholders(text, where)
    if not _URL.match(text) or not _has_host(text):
        raise InvalidInputError(
            "is not an http or https URL without a user", where=where, hint=hint
        )
    _refuse_long(text, where)
    return text


def _has_host(text: str) -> bool:
    """Return whether a URL has a host and a possible port."""
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _word(value: Json, where: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(value, "a string", where)
    if "\0" in value:
        raise InvalidInputError("has a NUL character, which an argument cannot have", where=where)
    _placeholders(value, where)
    return value


def _placeholders(text: str, where: str) -> None:
    for match in _PLACEHOLDER.finditer(text):
        if match[1] != "node":
            raise InvalidInputError(
                f"unknown placeholder {shown_key(match[1])}", where=where, hint="write %{node}"
            )


def _refuse_long(text: str, where: str) -> None:
    if len(text) > MAX_CHECK:
        raise InvalidInputError(
            f"has {len(text)} characters; at most {MAX_CHECK} are allowed", where=where
        )
