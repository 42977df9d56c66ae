"""Encode and decode the messages of etcd's version 3 API that the bus needs.

Integers are signed 64-bit numbers, as in etcd's fields. It has the field numbers of etcd's
`rpc.proto`, `kv.proto` and `auth`. Unknown fields are ignored; truncated or malformed bytes raise
ValueError.
"""

from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_ETCD_EVENTS
from localpuppet.fleet.bus.key_value import KeyValueEntry, parse_revision

Fields = dict[int, list[int | bytes]]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_BITS = (1 << 64) - 1


def encode(*fields: tuple[int, int | bytes | str | None]) -> bytes:
    """Return a message of fields by number; `None`, 0 and "" are omitted, as in the format.

    A field of bytes is written even if it is empty: an empty message differs from none.
    """
    data = bytearray()
    for number, value in fields:
        if value is None or value == 0 or value == "":
            continue
        if isinstance(value, int):
            data += _varint(number << 3 | _VARINT) + _varint(value & _BITS)
        else:
            raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
            data += _varint(number << 3 | _BYTES) + _varint(len(raw)) + raw
    return bytes(data)


def decode(data: bytes) -> Fields:
    """Return the fields of a message, each with all its values in order."""
    fields: Fields = {}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        value: int | bytes
        if tag & 7 == _VARINT:
            value, at = _read_varint(data, at)
            value -= (value >> 63) << 64
        else:
            length, at = _length(data, at, tag & 7)
            value = data[at : at + length]
            at += length
            if at > len(data):
                raise ValueError("a field is cut off")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def number(fields: Fields, key: int) -> int:
    """Return the last value of an integer field, 0 if it is missing."""
    value = fields.get(key, [0])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {key} is not an integer")
    return value


def blob(fields: Fields, key: int) -> bytes:
    """Return the last value of a field of bytes, empty if it is missing."""
    return next(reversed(blobs(fields, key)), b"")


def blobs(fields: Fields, key: int) -> list[bytes]:
    values = fields.get(key, [])
    blobs_found = [value for value in values if isinstance(value, bytes)]
    if len(blobs_found) != len(values):
        raise ValueError(f"field {key} is an integer")
    return blobs_found


def _length(data: bytes, at: int, kind: int) -> tuple[int, int]:
    if kind == _BYTES:
        return _read_varint(data, at)
    if kind in (_FIXED32, _FIXED64):  # unused by these messages: skipped, as the format requires
        return (4 if kind == _FIXED32 else 8), at
    raise ValueError(f"a field of type {kind}")


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _BITS, at
    raise ValueError("a number of more than 64 bits")


RANGE = "/etcdserverpb.KV/Range"
PUT = "/etcdserverpb.KV/Put"
TXN = "/etcdserverpb.KV/Txn"
WRITES = (PUT, TXN)
GRANT = "/etcdserverpb.Lease/LeaseGrant"
KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"
WATCH = "/etcdserverpb.Watch/Watch"
STATUS = "/etcdserverpb.Maintenance/Status"
AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"


_EQUAL, _MOD = 0, 2  # Compare.result, Compare.target
_DELETE = 1  # Event.type

PROGRESS_REQUEST = encode((3, b""))


class RangePage(Value):
    """A part of a range; `more` entries may follow the last one."""

    entries: tuple[KeyValueEntry, ...]
    more: bool
    revision: int
    cluster: int


class EtcdEvent(Value):
    """A key was written (`removed` false), removed, or its lease ended."""

    entry: KeyValueEntry
    removed: bool


class WatchMessage(Value):
    """A message of a watch; `compacted` is the oldest revision that it could start at, or 0."""

    revision: int
    cancelled: bool
    compacted: int
    reason: str
    events: tuple[EtcdEvent, ...]


def beyond(prefix: str) -> str:
    """Return the first key after all keys below a prefix ("0" follows "/")."""
    return prefix[:-1] + "0"


def range_request(
    key: str,
    *,
    end: str | None = None,
    limit: int = 0,
    revision: int = 0,
    changed_since: int = 0,
    keys_only: bool = False,
) -> bytes:
    """Return a RangeRequest for a key, or for the keys from `key` up to `end`, exclusive."""
    return encode(
        (1, key),
        (2, end),
        (3, limit),
        (4, revision),
        (8, int(keys_only)),
        (10, changed_since),
    )


def read_page(data: bytes, *, limit: int) -> RangePage:
    """Read a RangeResponse; more entries than requested raise ValueError."""
    fields = decode(data)
    header = decode(blob(fields, 1))
    entries = blobs(fields, 2)
    if len(entries) > limit:
        raise ValueError(f"{len(entries)} entries in place of {limit}")
    if number(fields, 3) and not entries:
        raise ValueError("an empty page, and more after it")
    return RangePage(
        entries=tuple(_entry(entry) for entry in entries),
        more=bool(number(fields, 3)),
        revision=parse_revision(number(header, 3)),
        cluster=number(header, 1),
    )


def put_request(key: str, value: bytes, lease: int) -> bytes:
    """Return a PutRequest; `lease` 0 means no lease."""
    return encode((1, key), (2, value), (3, lease))


def read_revision(data: bytes) -> int:
    """Read the store's revision from the header of any response."""
    return parse_revision(number(decode(blob(decode(data), 1)), 3))


def put_if_request(key: str, value: bytes, lease: int, revision: int) -> bytes:
    """Return a TxnRequest that writes if the key has the revision; 0: if it does not exist."""
    return encode((1, _compare(key, revision)), (2, encode((2, put_request(key, value, lease)))))


def delete_if_request(key: str, revision: int) -> bytes:
    """Return a TxnRequest that removes a key if it has the revision."""
    return encode((1, _compare(key, revision)), (2, encode((3, encode((1, key))))))


def read_transaction(data: bytes) -> int | None:
    """Read a TxnResponse: the revision of the write; `None` if the condition was false."""
    return read_revision(data) if number(decode(data), 2) else None


def grant_request(seconds: int) -> bytes:
    return encode((1, seconds))


def read_lease(data: bytes) -> int:
    """Read the lease's id from a LeaseGrantResponse."""
    return number(decode(data), 2)


def keep_alive_request(lease: int) -> bytes:
    return encode((1, lease))


def read_ttl(data: bytes) -> int:
    """Read a LeaseKeepAliveResponse: the seconds left, 0 if the lease has ended."""
    return number(decode(data), 3)


def watch_request(prefix: str, *, start: int) -> bytes:
    """Return a WatchRequest for all keys below a prefix, from a revision on."""
    # Field 8 requests fragments: a transaction of many large values is sent in parts.
    create = encode((1, prefix), (2, beyond(prefix)), (3, start), (8, 1))
    return encode((1, create))


def read_watched(data: bytes) -> WatchMessage:
    """Read a WatchResponse; more than `MAX_ETCD_EVENTS` events raise ValueError."""
    fields = decode(data)
    events = blobs(fields, 11)
    if len(events) > MAX_ETCD_EVENTS:
        raise ValueError(f"{len(events)} events in one message")
    return WatchMessage(
        revision=parse_revision(number(decode(blob(fields, 1)), 3)),
        cancelled=bool(number(fields, 4)),
        compacted=number(fields, 5),
        reason=blob(fields, 6).decode("utf-8", "replace"),
        events=tuple(_event(decode(event)) for event in events),
    )


def authenticate_request(user: str, password: str) -> bytes:
    return encode((1, user), (2, password))


def read_token(data: bytes) -> str:
    """Read the token in an AuthenticateResponse."""
    return blob(decode(data), 2).decode("ascii", "replace")


def read_version(data: bytes) -> str:
    """Read the server's version from a StatusResponse."""
    return blob(decode(data), 2).decode("ascii", "replace")


def _compare(key: str, revision: int) -> bytes:
    # A oneof exists only if it is written, so the revision 0 must be encoded by hand.
    mod = encode((6, revision)) if revision else b"\x30\x00"
    return encode((1, _EQUAL), (2, _MOD), (3, key)) + mod


def _event(fields: Fields) -> EtcdEvent:
    return EtcdEvent(entry=_entry(blob(fields, 2)), removed=number(fields, 1) == _DELETE)


def _entry(data: bytes) -> KeyValueEntry:
    fields = decode(data)
    return KeyValueEntry(
        # Other clients may have written any bytes; this key is the start of the next page.
        key=blob(fields, 1).decode("utf-8", "surrogateescape"),
        value=blob(fields, 5),
        revision=parse_revision(number(fields, 3)),
    )
