"""Texts that were made of entries, for when the same entry is asked for again.

Owns: how much is kept, and of what. Refuses to know: what the texts say.

- A text belongs to the very bytes of an entry: another entry of the node has another one.
- The texts that were not asked for the longest go first.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable

# Characters of all texts together: some two hundred nodes with 20 KB of facts each.
MAX_KEPT = 4 * 1024 * 1024


class Written:
    """Texts by the entries that they were made of; several threads may ask.

    Args:
        most: How many characters are kept.
    """

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._most = most
        self._size = 0
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()

    def text(self, key: bytes, write: Callable[[], str]) -> str:
        """Return the text of an entry; `write` makes one that is not kept.

        Args:
            key: SHA-256 of the entry as it stands on the bus.
            write: Makes the text.
        """
        with self._lock:
            if key in self._texts:
                self._texts.move_to_end(key)
                return self._texts[key]
        made = write()
        with self._lock:
            if key not in self._texts:
                self._texts[key] = made
                self._size += len(made)
            while self._size > self._most:
                self._size -= len(self._texts.popitem(last=False)[1])
        return made
