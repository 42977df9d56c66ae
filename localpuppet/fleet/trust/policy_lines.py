"""Parse the common format of policy files: lines of columns separated by tabs.

A line that cannot be parsed rejects the whole file, and the message names the line.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats.names import SignerName
from localpuppet.base.value import Value

MAX_POLICY = 256 * 1024
ANY = "*"

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

Found = TypeVar("Found")


def parse_lines(data: bytes, parse: Callable[[str, int], Found], *, where: str) -> Iterator[Found]:
    """Yield the parsed lines, without empty lines and comments.

    Args:
        data: UTF-8 text.
        parse: Parses a line without trailing white space; gets the line and its number, from 1.
        where: The file's name, for messages.

    Raises:
        InvalidInputError: The file is too large or not text, or a line is invalid.
    """
    if len(data) > MAX_POLICY:
        raise InvalidInputError(f"the policy is larger than {MAX_POLICY} bytes", where=where)
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InvalidInputError("the policy is not UTF-8", where=where) from error
    for number, line in enumerate(lines, 1):
        with errors_at(f"{where}: line {number}"):
            if _CONTROL.search(line):
                raise InvalidInputError(
                    "the policy has a control character", hint="end lines with a newline only"
                )
            stripped = line.rstrip(" \t")
            if stripped and not stripped.startswith("#"):
                yield parse(stripped, number)


class Signers(Value):
    """The signers that a line matches.

    Attributes:
        names: Names, and `*.SUFFIX`; `None` for all signers.
    """

    names: frozenset[str] | None

    @classmethod
    def parse(cls, words: Iterable[str] | None) -> "Signers":
        """Return the signers in a column; raise `InvalidInputError` for other patterns."""
        return cls(names=None if words is None else frozenset(map(_signer, words)))

    def include(self, signer: str) -> bool:
        """Return whether the line matches a signer."""
        if self.names is None or signer in self.names:
            return True
        labels = signer.split(".")
        return any(f"*.{'.'.join(labels[n:])}" in self.names for n in range(1, len(labels)))


def columns(line: str) -> list[str]:
    """Return the columns of a line."""
    return re.split("\t+", line)


def words(column: str) -> list[str] | None:
    """Return the words of a column, separated by single spaces; `None` for `*`."""
    if column == ANY:
        return None
    parts = column.split(" ")
    if "" in parts:
        raise InvalidInputError("a column has repeated spaces", hint="write one space")
    if ANY in parts:
        raise InvalidInputError("a column with '*' has other words")
    return parts


def _signer(word: str) -> str:
    name = word.removeprefix("*.")
    if ANY in name:
        raise InvalidInputError(
            f"the signer {word[:60]!r} is a pattern",
            hint="write NAME, or *.SUFFIX for all names below",
        )
    SignerName.parse(name)
    return word
