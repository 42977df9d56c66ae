"""Removes the contents of files (diffs) from Puppet's output.

Puppet prints a diff as one message of a resource, which begins with an empty line:

    Notice: /Stage[main]/Main/File[/etc/motd]/content:
    --- /etc/motd   2026-11-22 08:32:00
    +++ /tmp/puppet-file20261122-21266-o8qhwk
    @@ -1 +1 @@
    -old
    +new
    Notice: /Stage[main]/Main/File[/etc/motd]/content: content changed '{sha256}…' to '{sha256}…'

- A unified diff ends with the next message, which none of its lines can resemble.
- A site may use another diff program, whose lines may look like anything: such a diff ends only
  with the next message of the same resource.
"""

import re
from collections.abc import Iterable, Iterator

_MESSAGE = re.compile(r"(?:Debug|Info|Notice|Warning|Error|Alert|Emerg|Crit): ")
# A resource's message without a word in its first line.
_EMPTY = re.compile(
    rf"{_MESSAGE.pattern}(?P<source>(?:/.*\]/[\w.-]+|\w[\w:]*\[.*\]\(provider=[^)]*\)):) ?"
)
_UNIFIED = "--- "
# How lines end that `_EMPTY` matches; where a carriage return is, lines may end in other ways.
_ENDS_OF_EMPTY = (b":\n", b": \n", b"\r")


class Diffs:
    """Takes lines of output in order, and leaves out the contents of files."""

    def __init__(self) -> None:
        self._source: str | None = None  # whose diff this is
        self._unified: bool | None = None

    def may_be_in(self, piece: bytes) -> bool:
        """Return whether some of the next lines may be the contents of a file, by a quick check.

        Args:
            piece: Whole lines, as bytes of a file.
        """
        return self._source is not None or any(end in piece for end in _ENDS_OF_EMPTY)

    def without(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines that are not the contents of a file.

        Args:
            lines: The next ones, without newlines.
        """
        for line in lines:
            message = _MESSAGE.match(line)
            if self._source is not None:
                if self._unified is None:
                    self._unified = line.startswith(_UNIFIED)
                is_own = message is not None and line[message.end() :].startswith(self._source)
                if message is None or not (self._unified or is_own):
                    continue
            match = _EMPTY.fullmatch(line)
            self._source, self._unified = (match["source"] if match else None), None
            yield line
