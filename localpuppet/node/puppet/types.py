"""Whether a value fits a Puppet type, from the type's text; the parameters that every type has.

`False` is certain. For aliases, resource types and other types that only Puppet can resolve, the
answer is `None` and Puppet decides.

Source: https://www.puppet.com/docs/puppet/7/metaparameter.html
"""

import re
from collections.abc import Callable, Mapping, Sequence

from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value

_TOKEN = re.compile(
    r"\s*(?:(?P<name>(?:::)?[A-Z]\w*(?:::[A-Z]\w*)*)|(?P<word>default|true|false)\b"
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)(?![\w.])"
    r"|'(?P<single>(?:[^'\\])*)'|\"(?P<double>[^\"\\$]*)\"|(?P<mark>[\[\],]))",
    re.ASCII,
)
MAX_DEPTH = 50
MAX_TEXT = 64 * 1024  # characters of a type's text; the longest in use have some 10,000
MAX_WORK = 2_000_000


class PuppetType(Value):
    """A type, such as `Stdlib::Port`, and its arguments; `None` is `default`."""

    name: str
    arguments: tuple["Argument", ...]


Argument = PuppetType | str | int | float | bool | None


class _UnreadableError(Exception):
    """The text has syntax that this reader does not know."""


def read(text: str) -> PuppetType | None:
    """Return the type in `text`, or `None` if only Puppet can read it."""
    if len(text) > MAX_TEXT:
        return None
    tokens: list[tuple[str, str]] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            return None
        tokens.append((match.lastgroup, match.group(match.lastgroup)))
        position = match.end()
    try:
        value, end = _argument(tokens, 0, 0)
    except (_UnreadableError, IndexError):
        return None
    return value if isinstance(value, PuppetType) and end == len(tokens) else None


def _argument(tokens: Sequence[tuple[str, str]], start: int, depth: int) -> tuple[Argument, int]:
    """Return the argument that begins at a token, and the index of the token after it."""
    if depth > MAX_DEPTH:
        raise _UnreadableError
    kind, text = tokens[start]
    end = start + 1
    if kind == "name":
        arguments: list[Argument] = []
        if tokens[end : end + 1] == [("mark", "[")]:
            while tokens[end] != ("mark", "]"):
                value, end = _argument(tokens, end + 1, depth + 1)
                arguments.append(value)
                if tokens[end] not in (("mark", ","), ("mark", "]")):
                    raise _UnreadableError
            end += 1
        return PuppetType(name=text.removeprefix("::"), arguments=tuple(arguments)), end
    if kind == "word":
        return {"default": None, "true": True, "false": False}[text], end
    if kind == "number":
        return (float(text) if "." in text else int(text)), end
    if kind in ("single", "double"):
        return text, end
    raise _UnreadableError


def fits(type_: PuppetType, value: Json) -> bool | None:
    """Return whether `value` is of the type; `None` if that is uncertain.

    Each part of the type meets each part of the value at most once, so their product bounds the
    work. If it exceeds `MAX_WORK`, Puppet decides.
    """
    if _parts_of_type(type_) * _parts_of_value(value) > MAX_WORK:
        return None
    return _fits(type_, value)


def _parts_of_type(argument: Argument) -> int:
    if not isinstance(argument, PuppetType):
        return 1
    return 1 + sum(map(_parts_of_type, argument.arguments))


def _parts_of_value(value: Json) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(_parts_of_value, value.values()))
    return 1 + sum(map(_parts_of_value, value)) if isinstance(value, list) else 1


def _fits(type_: PuppetType, value: Json) -> bool | None:
    decide = _DECIDERS.get(type_.name)
    return None if decide is None else decide(type_.arguments, value)


def _both(first: bool | None, second: bool | None) -> bool | None:
    if first is False or second is False:
        return False
    return None if first is None or second is None else True


def _size(arguments: Sequence[Argument], number: int | float) -> bool | None:
    """Return whether `number` is within `[from, to]`, each optional."""
    if len(arguments) > 2 or any(isinstance(bound, bool | str | PuppetType) for bound in arguments):
        return None
    low, high = (*arguments, None, None)[:2]
    above = not isinstance(low, int | float) or number >= low
    return above and (not isinstance(high, int | float) or number <= high)


def _integer(arguments: Sequence[Argument], value: Json) -> bool | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return _size(arguments, value)


def _float(arguments: Sequence[Argument], value: Json) -> bool | None:
    return _size(arguments, value) if isinstance(value, float) else False


def _numeric(arguments: Sequence[Argument], value: Json) -> bool | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return None if arguments else True


def _string(arguments: Sequence[Argument], value: Json) -> bool | None:
    return _size(arguments, len(value)) if isinstance(value, str) else False


def _pattern(_arguments: Sequence[Argument], value: Json) -> bool | None:
    # Ruby's regular expressions are not Python's.
    return None if isinstance(value, str) else False


def _boolean(arguments: Sequence[Argument], value: Json) -> bool | None:
    if not isinstance(value, bool):
        return False
    return None if arguments else True


def _enum(arguments: Sequence[Argument], value: Json) -> bool | None:
    if not isinstance(value, str):
        return False
    texts = [argument for argument in arguments if isinstance(argument, str)]
    # Enum['a', true] compares without case.
    return value in texts if texts and len(texts) == len(arguments) else None


def _array(arguments: Sequence[Argument], value: Json) -> bool | None:
    if not isinstance(value, list):
        return False
    if not arguments:
        return True
    item, *sizes = arguments
    if not isinstance(item, PuppetType):
        return None
    answer = _size(sizes, len(value))
    for element in value:
        answer = _both(answer, _fits(item, element))
    return answer


def _hash(arguments: Sequence[Argument], value: Json) -> bool | None:
    if not isinstance(value, dict):
        return False
    if not arguments:
        return True
    if len(arguments) < 2:
        return None
    key_type, item, *sizes = arguments
    if not isinstance(key_type, PuppetType) or not isinstance(item, PuppetType):
        return None
    answer = _size(sizes, len(value))
    for key, element in value.items():
        answer = _both(answer, _both(_fits(key_type, key), _fits(item, element)))
    return answer


def _variant(arguments: Sequence[Argument], value: Json) -> bool | None:
    answers = [
        _fits(argument, value) if isinstance(argument, PuppetType) else None
        for argument in arguments
    ]
    if any(answers):
        return True
    return False if answers and all(answer is False for answer in answers) else None


def _inner(arguments: Sequence[Argument], value: Json) -> bool | None:
    """Return whether the value fits the one argument of Optional or NotUndef, type or text."""
    if len(arguments) != 1:
        return None
    inner = arguments[0]
    if isinstance(inner, str):
        return value == inner
    return _fits(inner, value) if isinstance(inner, PuppetType) else None


def _optional(arguments: Sequence[Argument], value: Json) -> bool | None:
    return True if value is None else _inner(arguments, value)


def _not_undef(arguments: Sequence[Argument], value: Json) -> bool | None:
    return False if value is None else _inner(arguments, value)


def _undef(_arguments: Sequence[Argument], value: Json) -> bool | None:
    return value is None


def _any(_arguments: Sequence[Argument], _value: Json) -> bool | None:
    return True


_DECIDERS: Mapping[str, Callable[[Sequence[Argument], Json], bool | None]] = {
    "Any": _any,
    "Array": _array,
    "Boolean": _boolean,
    "Enum": _enum,
    "Float": _float,
    "Hash": _hash,
    "Integer": _integer,
    "NotUndef": _not_undef,
    "Numeric": _numeric,
    "Optional": _optional,
    "Pattern": _pattern,
    "String": _string,
    "Undef": _undef,
    "Variant": _variant,
}


METAPARAMETERS = frozenset(
    (
        "alias",
        "audit",
        "before",
        "consume",
        "export",
        "loglevel",
        "noop",
        "notify",
        "require",
        "schedule",
        "stage",
        "subscribe",
        "tag",
    )
)
