"""The entries of a Puppetfile, unjudged."""

from collections.abc import Mapping

from localpuppet.base.value import Value


class PuppetfileEntry(Value):
    """One `mod` of a Puppetfile.

    Attributes:
        name: The name as written: `puppetlabs/stdlib`, `ntp`.
        line: The line on which it starts.
        version: Its second argument, `latest` for `:latest`; empty without one.
        options: Its options by name; symbols and booleans as text.
        comment: The comment right above it, without `#`.
        left: Why it cannot be read, or empty.
        moduledir: The `moduledir` above it; `None` without one.
    """

    name: str
    line: int
    version: str = ""
    options: Mapping[str, str]
    comment: str = ""
    left: str = ""
    moduledir: str | None = None


class Puppetfile(Value):
    """A Puppetfile.

    Attributes:
        entries: Its modules, in its order.
        forge: The `forge` setting, or empty.
        notes: Line → unsupported code there.
    """

    entries: tuple[PuppetfileEntry, ...]
    forge: str = ""
    notes: Mapping[int, str]
