"""Typed values out of the claims of a signed message.

Owns: which types and forms claims have that requests and replies share. Invariants: a boolean is
no integer, a claim that nobody knows is refused, and nothing is converted.
"""

from collections.abc import Collection, Mapping

from localpuppet.errors import InvalidInputError
from localpuppet.model.names import SignerName, parse_uuid
from localpuppet.model.text import parse_line
from localpuppet.model.values import Json, at, type_names

# The longest life of a message, by the receiver's own rule, and how far clocks may be apart.
MAX_LIFE = 300
MAX_AHEAD = 30


def check_keys(raw: Mapping[str, Json], known: Collection[str], *, where: str) -> None:
    """Refuse claims that are unknown.

    Raises:
        InvalidInputError: One is.
    """
    for key in raw:
        if key not in known:
            raise InvalidInputError(f"unknown key {key[:40]!r}", where=where)


def text(raw: Mapping[str, Json], key: str, *, where: str) -> str:
    """Return a claim that is text.

    Raises:
        InvalidInputError: It is missing or something else.
    """
    value = _required(raw, key, where)
    if not isinstance(value, str):
        raise _wrong(value, "text", at(where, key))
    return value


def caller(raw: Mapping[str, Json], key: str, *, where: str) -> SignerName:
    """Return the name in a claim that is a caller id.

    Raises:
        InvalidInputError: It is missing or no caller id.
    """
    value = text(raw, key, where=where)
    try:
        return SignerName.parse_caller(value)
    except InvalidInputError as error:
        raise error.at(at(where, key)) from error


def whole(raw: Mapping[str, Json], key: str, *, where: str) -> int:
    """Return a claim that is a time: whole seconds since 1970, from 0.

    Raises:
        InvalidInputError: It is missing, negative or something else.
    """
    value = _required(raw, key, where)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(value, "a whole number", at(where, key))
    if value < 0:
        raise InvalidInputError("is negative", where=at(where, key))
    return value


def boolean(raw: Mapping[str, Json], key: str, *, where: str) -> bool:
    """Return a claim that is true or false.

    Raises:
        InvalidInputError: It is missing or something else.
    """
    value = _required(raw, key, where)
    if not isinstance(value, bool):
        raise _wrong(value, "true or false", at(where, key))
    return value


def mapping(raw: Mapping[str, Json], key: str, *, where: str) -> dict[str, Json]:
    """Return a claim that is an object.

    Raises:
        InvalidInputError: It is missing or something else.
    """
    value = _required(raw, key, where)
    if not isinstance(value, dict):
        raise _wrong(value, "an object", at(where, key))
    return value


def line(raw: Mapping[str, Json], key: str, *, where: str) -> str:
    """Return a claim that people will read: one printable line of at most 1 KiB.

    Raises:
        InvalidInputError: It is missing or no such line.
    """
    value = text(raw, key, where=where)
    try:
        return parse_line(value, what=key)
    except InvalidInputError as error:
        raise error.at(at(where, key)) from error


def identifier(raw: Mapping[str, Json], key: str, *, where: str) -> str:
    """Return a claim that is a UUID in its canonical lower-case form.

    Raises:
        InvalidInputError: It is missing or no UUID.
    """
    return parse_uuid(text(raw, key, where=where), where=at(where, key))


def life_problem(*, iat: int, exp: int, now: int) -> str:
    """Return why a message with these times is not taken; empty when it is.

    Args:
        iat: When it was issued, seconds since 1970 by the sender's clock.
        exp: When it expires; at that second it is expired.
        now: The receiver's clock.
    """
    if exp <= iat:
        return "exp is not after iat"
    if exp - iat > MAX_LIFE:
        return f"exp is {exp - iat} s after iat, its lifetime may be {MAX_LIFE} s"
    if iat > now + MAX_AHEAD:
        return f"iat is {iat - now} s in the future (are both clocks right?)"
    if now >= exp:
        return f"expired {now - exp} s ago (are both clocks right?)"
    return ""


def _required(raw: Mapping[str, Json], key: str, where: str) -> Json:
    if key not in raw:
        raise InvalidInputError(f"the key {key!r} is missing", where=where)
    return raw[key]


def _wrong(value: Json, wanted: str, where: str) -> InvalidInputError:
    return InvalidInputError(f"must be {wanted}, not a {type_names[type(value)]}", where=where)
