"""The wire format of Protocol Buffers, as far as etcd's messages need it.

It reads varints and bytes. Integers are signed 64-bit numbers, as in etcd's fields. Truncated or
malformed bytes raise ValueError.
"""

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
    """Return all values of a field of bytes."""
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
