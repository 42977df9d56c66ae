"""The bus's store, as a port: a few verbs over keys, with revisions, expiry and watches.

Everything that nodes tell each other (triggers, presence, leases, requests) is written once, above
this port. Its adapters are SQLite on one machine, etcd, and NATS JetStream; what all of them check
stands in `bus.checked_store`, and one contract test class in the tests runs over all of them.
Losing a race returns `None`; a store that cannot be reached raises; the two are never mixed up, and
neither looks like "there is nothing".

Invariants that every adapter keeps:

- A revision is a positive integer of 63 bits that grows with every write to the store, whatever the
  key. A server, or a forger, that tells of a larger one is not believed.
- `ttl` promises "gone no earlier than": a value is there for at least so many seconds, and
  disappears for readers some time after. No watcher takes an expiry for a write.
- A write that returned survives the server's clean restart, and its kill -9.
- Every call ends within the deadline that the adapter was made with.
"""

import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from localpuppet.base.errors import InvalidInputError, UnavailableError

MAX_KEY = 512
MAX_VALUE = 512 * 1024
MAX_REVISION = 2**63 - 1
MAX_VALUE_TTL = 10 * 365 * 86400.0
# What a listing that is taken whole may hold, keys and values, and a part of one that is not.
MAX_LISTING = 64 * 1024 * 1024
PART = 1024 * 1024
_KEY = re.compile(r"(?:/[A-Za-z0-9_@=+:-][A-Za-z0-9_.@=+:-]*)+")


def parse_revision(number: int | str) -> int:
    """Return a revision that somebody else told of; 0 for none.

    Raises:
        ValueError: It is not one.
    """
    found = int(number)
    if not 0 <= found <= MAX_REVISION:
        raise ValueError("not a revision")
    return found


class RefusedError(UnavailableError):
    """The server knows us, and does not let us do that: it answers the same until somebody acts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A key that is there.

    Attributes:
        key: Its key.
        value: Its bytes, exactly as they were written.
        revision: The revision of the write that made this value.
    """

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All that is below a prefix at one moment; a watcher forgets what it knew before.

    Attributes:
        entries: What is there, sorted by key.
        revision: Changes after this one are not in it.
        more: Whether this is a part, and others follow: see `KeyValue.watch`.
    """

    entries: tuple[Entry, ...]
    revision: int
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Somebody wrote a value."""

    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A key was removed, or expired: not every store can tell which."""

    key: str
    revision: int


Change = Listing | Put | Gone


class KeyValue(Protocol):
    """A store of keys that other nodes see.

    Keys look like paths: `/a/b.c/d`, see `check_key`. A prefix is a key and a final `/`, and
    stands for every key below it.

    All methods raise `UnavailableError` when the store cannot be reached, refuses us (permission)
    or does not answer within the deadline, and `InvalidInputError` for a malformed key or prefix, a
    value of more than `MAX_VALUE` bytes, or a ttl that is not above 0 and at most `MAX_VALUE_TTL`
    seconds. After an `UnavailableError` from a write it is unknown whether the write took place.
    """

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what an operator should know about this server (a version known to be weak)."""
        ...

    async def get(self, key: str) -> Entry | None:
        """Return the newest value of a key; `None` when there is none."""
        ...

    async def list(self, prefix: str, *, largest: int = MAX_VALUE) -> Listing:
        """Return all that is below a prefix, at one revision.

        Args:
            prefix: Where.
            largest: The bytes of the largest value that is of use; larger ones are passed over.

        Raises:
            UnavailableError: There is more than `MAX_LISTING` bytes, too.
        """
        ...

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> int:
        """Write a value, whatever was there; return its revision.

        Args:
            key: The key.
            value: The bytes.
            ttl: Seconds that it stays; for ever when `None`. Each write sets it anew.
        """
        ...

    async def add_if_new(self, key: str, value: bytes, *, ttl: float | None = None) -> int | None:
        """Write a value if the key is not there; return its revision, `None` if it is there."""
        ...

    async def set_if_revision(
        self, key: str, value: bytes, revision: int, *, ttl: float | None = None
    ) -> int | None:
        """Write a value if the key still has that revision; `None` if it does not."""
        ...

    async def remove_if_revision(self, key: str, revision: int) -> bool:
        """Remove a key if it still has that revision; return whether it had."""
        ...

    def watch(
        self,
        prefix: str,
        *,
        after: int | None = None,
        largest: int = MAX_VALUE,
        parts: bool = False,
    ) -> AsyncGenerator[Change, None]:
        """Follow all that happens below a prefix, without an end.

        Args:
            prefix: Where.
            after: The revision that was seen last: a `Listing`'s, a `Put`'s or a `Gone`'s.
                `None` asks for a `Listing` first.
            largest: The bytes of the largest value that is of use; who writes a larger one is not
                told of. Others can write as much as a store takes: a watcher names what its kind
                of key needs.
            parts: Whether listings may come in parts of about `PART` bytes, of which all but the
                last have `more`. For watchers that take one entry after the other and forget it:
                they need as much memory as one part has. A key may then come twice, the newer
                value later, and a listing may begin anew before its last part.

        Yields:
            A `Listing`, or the changes after `after`, in the order of their revisions. Where the
            changes since then are not to be had any more (compacted, another store, a server that
            lost them) a `Listing` comes instead; it may come again at any time, for instance
            after a lost connection. Of several changes of one key between two looks only the last
            need be told. An expiry is told as `Gone` or not at all.

        Raises:
            UnavailableError: The connection is lost, noticed within the deadline. Call again with
                the last revision.
        """
        ...

    async def close(self) -> None:
        """Give the connection back; every call after that raises."""
        ...


def check_key(key: str) -> str:
    """Return the key; refuse any other text.

    A key is `/` and a component, as often as it likes: ASCII letters, digits and `_ . @ = + : -`,
    the first of each no dot, at most 512 bytes in all. That maps to etcd's keys as it is and to
    NATS subjects by an exchange of two characters.

    Raises:
        InvalidInputError: The text is not a key.
    """
    if not is_key(key):
        raise InvalidInputError(f"{key[:80]!r} is not a key of the bus", where="bus")
    return key


def is_ours(entry: Entry) -> bool:
    """Return whether an entry is one that a client of ours could have written.

    Who has a server's own client can write other keys and larger values below a prefix that is his.
    A store tells nobody of them: who follows that prefix could do nothing with them but fail.
    """
    return len(entry.value) <= MAX_VALUE and is_key(entry.key)


def is_key(text: str) -> bool:
    """Return whether a text is a key of the bus."""
    return len(text) <= MAX_KEY and _KEY.fullmatch(text) is not None


def check_prefix(prefix: str) -> str:
    """Return the prefix: a key and a final `/`.

    Raises:
        InvalidInputError: The text is not a prefix.
    """
    if not prefix.endswith("/"):
        raise InvalidInputError(f"{prefix[:80]!r} does not end with '/'", where="bus")
    check_key(prefix[:-1])
    return prefix


def check_value(value: bytes, ttl: float | None) -> bytes:
    """Return the value, if a store may take it for so long.

    Args:
        value: The bytes.
        ttl: Seconds; for ever when `None`.

    Raises:
        InvalidInputError: It has more than `MAX_VALUE` bytes, or is to stay for no time or for more
            than `MAX_VALUE_TTL` seconds.
    """
    if ttl is not None and not 0 < ttl <= MAX_VALUE_TTL:
        raise InvalidInputError(
            f"a ttl of {ttl:g} s; the bus takes more than 0 and at most {MAX_VALUE_TTL:.0f}",
            where="bus",
        )
    if len(value) > MAX_VALUE:
        raise InvalidInputError(
            f"a value of {len(value)} bytes; the bus takes {MAX_VALUE}", where="bus"
        )
    return value


def entries(change: Change) -> Sequence[Entry]:
    """Return what a change says to be there."""
    if isinstance(change, Listing):
        return change.entries
    return [change.entry] if isinstance(change, Put) else []
