"""What a Puppetfile says, before anybody judges it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One `mod` of a Puppetfile.

    Attributes:
        name: As it is written: `puppetlabs/stdlib`, `ntp`.
        line: Where it starts.
        version: Its second argument, `latest` for `:latest`; empty without one.
        options: Its options by name; symbols and booleans as text.
        comment: The comment right above it, without `#`.
        left: Why it cannot be read; empty when it was.
    """

    name: str
    line: int
    version: str = ""
    options: Mapping[str, str]
    comment: str = ""
    left: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Puppetfile:
    """A Puppetfile.

    Attributes:
        entries: Its modules, in its order.
        moduledir: Where it wants them; empty where it does not say.
        forge: The forge that it names; empty where it names none.
        notes: Line → what else is in it that was not read.
    """

    entries: tuple[Entry, ...]
    moduledir: str = ""
    forge: str = ""
    notes: Mapping[int, str]
