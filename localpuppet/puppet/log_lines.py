"""What Puppet printed, without the contents of files.

Owns: how diffs are told from everything else in Puppet's output. Refuses to know: where output is
kept, who reads it.

Puppet prints a diff as one message of a resource, which begins with an empty line:

    Notice: /Stage[main]/Main/File[/etc/motd]/content:
    --- /etc/motd   2026-11-22 08:32:00
    +++ /tmp/puppet-file20261122-21266-o8qhwk
    @@ -1 +1 @@
    -old
    +new
    Notice: /Stage[main]/Main/File[/etc/motd]/content: content changed '{sha256}…' to '{sha256}…'

- A unified diff ends with the next message: none of its lines can look like one.
- A site may have another program or format for diffs, whose lines may look like anything: such a
  diff ends only with the next message of the same resource.
"""

import re
from collections.abc import Iterable, Iterator

_MESSAGE = re.compile(r"(?:Debug|Info|Notice|Warning|Error|Alert|Emerg|Crit): ")
# A resource's message without a word in its first line.
_EMPTY = re.compile(
    rf"{_MESSAGE.pattern}(?P<source>(?:/.*\]/[\w.-]+|\w[\w:]*\[.*\]\(provider=[^)]*\)):) ?"
)
_UNIFIED = "--- "


def without_diffs(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of an output that are not the contents of a file.

    Args:
        lines: The whole output from its beginning, without newlines.
    """
    source: str | None = None  # whose diff this is
    unified: bool | None = None
    for line in lines:
        message = _MESSAGE.match(line)
        if source is not None:
            unified = line.startswith(_UNIFIED) if unified is None else unified
            if message is None or not (unified or line[message.end() :].startswith(source)):
                continue
        found = _EMPTY.fullmatch(line)
        source, unified = (found["source"] if found else None), None
        yield line
