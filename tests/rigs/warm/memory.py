"""Looks into the memory of other processes."""

import re
from pathlib import Path


def remembers(pid: int, word: str) -> bool:
    """Return whether a word stands in what a process has written into its memory."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            match = re.match(r"(\w+)-(\w+) rw", line)
            if match:
                first, last = (int(number, 16) for number in match.groups())
                file.seek(first)
                if word.encode() in file.read(last - first):
                    return True
    return False
