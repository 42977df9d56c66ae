"""A cache of texts made from entries.

- A text belongs to the exact bytes of an entry: a newer entry has a new text.
- Texts that were unused for the longest time are removed first.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable

# Characters of all texts together: some two hundred nodes with 20 KB of facts each.
MAX_KEPT = 4 * 1024 * 1024


class TextCache:
    """Texts by their entries; safe for use from several threads.

    Args:
        most: The limit of stored characters.
    """

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._most = most
        self._size = 0
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()

    def text(self, key: bytes, write: Callable[[], str]) -> str:
        """Return the text of an entry, from the cache or from `write`.

        Args:
            key: SHA-256 of the entry's message on the bus.
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
