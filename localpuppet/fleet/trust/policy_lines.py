"""What policy files share: lines of columns with tabs between them, and what is refused in them.

Owns: size, encoding, comments, columns, words, and how signers are named in a column. Refuses to
know: what other columns mean. Invariant: what is not understood refuses the whole file, and the
message names the line.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import SignerName

MAX_POLICY = 256 * 1024
ANY = "*"

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

Found = TypeVar("Found")


def parse_lines(data: bytes, parse: Callable[[str, int], Found], *, where: str) -> Iterator[Found]:
    """Yield what the lines say that say something.

    Args:
        data: UTF-8 text.
        parse: Returns what a line says; it gets the line, without white space at its end, and its
            number, from 1.
        where: The file's name, for messages.

    Raises:
        InvalidInputError: The file is too large or not text, or a line is refused.
    """
    if len(data) > MAX_POLICY:
        raise InvalidInputError(f"the policy is larger than {MAX_POLICY} bytes", where=where)
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InvalidInputError("the policy is not UTF-8", where=where) from error
    for number, line in enumerate(lines, 1):
        try:
            if _CONTROL.search(line):
                raise InvalidInputError(
                    "a control character in the policy", hint="lines end with a newline alone"
                )
            said = line.rstrip(" \t")
            if said and not said.startswith("#"):
                yield parse(said, number)
        except InvalidInputError as error:
            raise error.at(f"{where}: line {number}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Signers:
    """Whom a line is about.

    Attributes:
        names: Names, and `*.SUFFIX`; `None` for everybody.
    """

    names: frozenset[str] | None

    @classmethod
    def parse(cls, words: Iterable[str] | None) -> "Signers":
        """Return what a column of signers says.

        Args:
            words: See `words`.

        Raises:
            InvalidInputError: A word is neither a name nor `*.SUFFIX`.
        """
        return cls(names=None if words is None else frozenset(map(_signer, words)))

    def include(self, signer: str) -> bool:
        """Return whether the line is about a signer."""
        if self.names is None or signer in self.names:
            return True
        labels = signer.split(".")
        return any(f"*.{'.'.join(labels[n:])}" in self.names for n in range(1, len(labels)))


def columns(line: str) -> list[str]:
    """Return the columns of a line."""
    return re.split("\t+", line)


def words(column: str) -> list[str] | None:
    """Return the words of a column; `None` for `*`.

    Raises:
        InvalidInputError: Words have more than a space between them, or `*` is one of several.
    """
    if column == ANY:
        return None
    found = column.split(" ")
    if "" in found:
        raise InvalidInputError("a column has spaces too many", hint="one space between words")
    if ANY in found:
        raise InvalidInputError("'*' stands alone in its column")
    return found


def _signer(word: str) -> str:
    name = word.removeprefix("*.")
    if ANY in name:
        raise InvalidInputError(
            f"the signer {word[:60]!r} is a pattern", hint="NAME, or *.SUFFIX for all names below"
        )
    SignerName.parse(name)
    return word
