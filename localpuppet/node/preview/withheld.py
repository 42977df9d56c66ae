"""Values that a capture does not contain: typed placeholders, and what Puppet gets instead.

- `{"__ptype": "Withheld", "type": "String"}` replaces a value that may be secret. Mappings and
  lists keep their form, because code branches on it; only the values in them are replaced.
- A value is withheld if a key on its path matches a pattern, at any depth, or if its text shows
  that it is a secret: a private key, or an address with a password or token. A mapping with `name`,
  `path`, `key` or the like beside `value`, such as a row of facts, counts as a key with its value.
- True, false, null and empty texts stay: code branches on them, and they are no secrets.
- For Puppet, a placeholder becomes a value of its type. The value depends on the path only, so that
  two compilations of a node get the same one, and two secrets of a node different ones.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json, at

TYPE_KEY, WITHHELD = "__ptype", "Withheld"
# Keys of possible secrets, in lower case and without '_', '-', '.' and blanks. No node publishes
# such facts.
SECRET = (
    *("*userdata*", "*customdata*", "*startupscript*", "*password*", "*passwd*", "*passphrase*"),
    *("*secret*", "*credential*", "*token*", "*accesskey*", "*apikey*", "*privatekey*"),
    *("*sharedkey*", "*sessionkey*", "*sshkeys", "*kubeconfig*"),
)
# A placeholder costs less than a fact that the inventory lacks: these match more.
DEFAULT_PATTERNS = (
    *SECRET,
    *("*pwd*", "*pw", "pin", "*psk*", "*salt*", "*key", "*keys", "*keydata*", "*cert*key*"),
    *("*auth", "*authorization*", "*cookie*", "*community*", "*vault*", "*pass", "*passcode*"),
    *("*creds*", "*bearer*", "*jwt*"),
)
_SEPARATORS = str.maketrans("", "", "_-. ")
# Keys of a row, in lower case, that name what is in its `value`.
_NAMING = ("name", "path", "key", "title", "setting", "variable")
_SECRET_TEXT = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY|AGE-SECRET-KEY-1|[a-z]://[^/\s:@]*:[^/\s@]+@"
    r"|https?://[^/\s:@]+@",
    re.IGNORECASE,
)
_NUMBERS = {"Integer": 4096, "Float": 4096.5}
TYPES = ("String", *_NUMBERS)


@dataclass(frozen=True, slots=True)
class WithheldKeys:
    """The keys whose values are withheld.

    Attributes:
        patterns: Shell globs of keys; case, `_`, `-`, `.` and blanks do not count.
        shown: Globs of exceptions.
    """

    patterns: tuple[str, ...] = DEFAULT_PATTERNS
    shown: tuple[str, ...] = ()

    def has(self, key: str) -> bool:
        """Return whether the value of a key is withheld."""
        return matches(key, self.patterns) and not matches(key, self.shown)


def withhold(value: Json, keys: WithheldKeys) -> Json:
    """Return a value with placeholders for all that may be secret in it."""
    if isinstance(value, dict):
        if value.get(TYPE_KEY) == WITHHELD:
            return value
        named = {"__pvalue", *(["value"] if any(map(keys.has, _names(value))) else ())}
        secret = {key for key in value if keys.has(key) or key.lower() in named}
        return {
            key: withhold_all(item) if key in secret else withhold(item, keys)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [withhold(item, keys) for item in value]
    if isinstance(value, str) and shows_secret(value):
        return withhold_all(value)
    return value


def shows_secret(text: str) -> bool:
    """Return whether a text itself is a secret: a private key, an address with a password."""
    return _SECRET_TEXT.search(text) is not None


def _names(row: Mapping[str, Json]) -> list[str]:
    """Return the names that a row gives to its value: `name`, `key`, the steps of `path`."""
    given = [item for key, item in row.items() if key.lower() in _NAMING]
    names = [name for item in given for name in (item if isinstance(item, list) else [item])]
    return [name for name in names if isinstance(name, str)]


def withhold_all(value: Json) -> Json:
    """Return a value with placeholders for all values in it that can be a secret."""
    if isinstance(value, dict):
        if value.get(TYPE_KEY) == WITHHELD:
            return value
        # The name of a rich data type stays: it is Puppet's.
        return {key: item if key == TYPE_KEY else withhold_all(item) for key, item in value.items()}
    if isinstance(value, list):
        return [withhold_all(item) for item in value]
    if value is None or value is True or value is False or value == "":
        return value
    kinds = {int: "Integer", float: "Float", str: "String"}
    return {TYPE_KEY: WITHHELD, "type": kinds[type(value)]}


@lru_cache(maxsize=8192)
def matches(key: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a key, in any spelling, matches one of the patterns."""
    return _pattern(patterns).match(key.lower().translate(_SEPARATORS)) is not None


@lru_cache(maxsize=8)
def _pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    # Without patterns nothing matches: an empty expression would match everything.
    plain = (pattern.lower().translate(_SEPARATORS) for pattern in patterns)
    return re.compile("|".join(map(translate, plain)) or r"(?!)")


def with_stand_ins(value: Json, *, where: str) -> Json:
    """Return a value for Puppet: each placeholder becomes a value of its type.

    Args:
        value: The value.
        where: Its path, on which the values depend.

    Raises:
        InvalidInputError: A placeholder names no type of a value.
    """
    if isinstance(value, dict):
        if value.get(TYPE_KEY) == WITHHELD:
            return _stand_in(value, where)
        return {key: with_stand_ins(item, where=at(where, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [with_stand_ins(item, where=at(where, index)) for index, item in enumerate(value)]
    return value


def _stand_in(placeholder: Mapping[str, Json], where: str) -> Json:
    kind = placeholder.get("type")
    if kind not in TYPES or len(placeholder) != 2:
        raise InvalidInputError(
            f"is a placeholder without a known type, which is one of {', '.join(TYPES)}",
            where=where,
        )
    if kind in _NUMBERS:
        return _NUMBERS[str(kind)]
    return f"withheld-{hashlib.sha256(where.encode()).hexdigest()[:16]}"
