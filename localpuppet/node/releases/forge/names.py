"""Names of modules of the Forge, OWNER/NAME, and of the public Forge's hosts."""

import re
from urllib.parse import urlsplit

from localpuppet.base.errors import InvalidInputError

_SLUG = r"([A-Za-z0-9]{1,64})[/-]([a-z][a-z0-9_]{0,99})\Z"
_PUBLIC = {
    f"{host}.{site}.com" for host in ("forge", "forgeapi") for site in ("puppet", "puppetlabs")
}


class Slug(str):
    """A module of the Forge as `OWNER/NAME`; `OWNER-NAME` is read as well."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str, *, where: str) -> "Slug":
        """Return the name.

        Raises:
            InvalidInputError: The text is not OWNER/NAME.
        """
        match = re.match(_SLUG, text)
        if match is None:
            raise InvalidInputError(
                f"{text[:60]!r} is not a module of the Forge",
                where=where,
                hint="OWNER/NAME, such as puppetlabs/stdlib",
            )
        return cls(f"{match[1]}/{match[2]}")

    @property
    def module(self) -> str:
        """The module's own name, which is its directory."""
        return self.partition("/")[2]

    @property
    def dashed(self) -> str:
        """`OWNER-NAME`, as in the API and in `metadata.json`."""
        return self.replace("/", "-", 1)


def is_public(url: str) -> bool:
    """Return whether a URL is of the public Forge, under any name that it has had."""
    try:
        return urlsplit(url).hostname in _PUBLIC
    except ValueError:
        return False
