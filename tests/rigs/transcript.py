"""A page's console blocks and the output of an example: pasted, and compared.

It decides which section goes into which block. It does not know how the example is run, or what
differs from day to day (`sessions.plain`).

    docs/examples/three-tier/run | python -m tests.rigs.transcript docs/start/first-rollout.md

The example's sections begin with `== TITLE ==`; the page's fences with "```console". The first
section goes into the first fence, and so on. The numbers of sections and fences must be equal.
"""

import re
import sys
from difflib import unified_diff
from itertools import zip_longest
from pathlib import Path

from tests.rigs.sessions import plain

_TITLE = re.compile(r"^== .* ==\n+", re.MULTILINE)
_FENCE = re.compile(r"(^```console\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)


def sections(printed: str) -> list[str]:
    """Return what the example printed below each title, without empty lines around it."""
    return [part.strip("\n") + "\n" for part in _TITLE.split(printed)[1:]]


def fences(page: str) -> list[str]:
    """Return the contents of the fences of a page."""
    return [fence[2] for fence in _FENCE.finditer(page)]


def pasted(page: str, printed: str) -> str:
    """Return a page with the output of the example.

    Raises:
        ValueError: The page has not as many fences as there are sections.
    """
    printed_sections = sections(printed)
    if len(printed_sections) != len(fences(page)):
        raise ValueError(f"{len(printed_sections)} sections for {len(fences(page))} fences")
    following = iter(printed_sections)
    return _FENCE.sub(lambda fence: fence[1] + next(following) + fence[3], page)


def differences(page: str, printed: str) -> list[str]:
    """Return what the page shows (-) and what was printed (+) where they differ after `plain`."""
    both = zip_longest(fences(page), sections(printed), fillvalue="")
    return [
        line
        for shown, output in both
        for line in unified_diff(plain(shown.splitlines()), plain(output.splitlines()), lineterm="")
    ]


if __name__ == "__main__":
    _path = Path(sys.argv[1])
    _path.write_text(pasted(_path.read_text("utf-8"), sys.stdin.read()), "utf-8")
