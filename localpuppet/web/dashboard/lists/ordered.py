"""Keeps names sorted by a key while the keys change.

A change costs the logarithm of the number of names (and moves the end of one list). Names with
equal keys are sorted by name in both directions.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Any


class Ordered:
    """Names by a key; all keys of one order can be compared."""

    def __init__(self) -> None:
        self._keys: list[Any] = []
        self._names: dict[Any, list[str]] = {}

    def add(self, key: Any, name: str) -> None:  # noqa: ANN401 - whatever can be compared
        """Add a new name."""
        names = self._names.get(key)
        if names is not None:
            insort(names, name)
            return
        self._names[key] = [name]
        insort(self._keys, key)

    def remove(self, key: Any, name: str) -> None:  # noqa: ANN401 - as for `add`
        """Remove an existing name."""
        names = self._names[key]
        del names[bisect_left(names, name)]
        if not names:
            del self._names[key]
            del self._keys[bisect_left(self._keys, key)]

    def of(self, key: Any) -> Sequence[str]:  # noqa: ANN401 - as for `add`
        """Return the names that have a key, in order."""
        return self._names.get(key, ())

    def names(self, *, down: bool = False) -> Iterator[str]:
        """Yield all names; those of the highest key first if `down`."""
        for key in reversed(self._keys) if down else self._keys:
            yield from self._names[key]

    def below(self, key: Any) -> list[str]:  # noqa: ANN401 - as for `add`
        """Return the names whose keys are lower than one."""
        lower = self._keys[: bisect_left(self._keys, key)]
        return [name for lower_key in lower for name in self._names[lower_key]]
