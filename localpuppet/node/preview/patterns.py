"""Patterns for resources and their parameters, of `--ignore` and `--fail-on`.

    File[*]::mtime                the parameter `mtime` of each file
    Service                       each service
    removed:Service[nginx*]       a removed service (`--fail-on` only)

`*` is any text, also none, and `?` is one character. A title may have brackets.
"""

import re
from fnmatch import translate
from functools import lru_cache

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.value import Value

MAX_PATTERN = 1024
_ACTIONS = ("added", "removed", "changed")
_PATTERN = re.compile(
    r"(?P<type>[A-Z*?][\w*?]*(?:::[A-Z*?][\w*?]*)*)"
    r"(?:\[(?P<title>.*)\])?(?:::(?P<parameter>[a-z_][\w*?]*))?",
    re.DOTALL,
)


class ResourcePattern(Value):
    """A pattern for resources, or for parameters of them.

    Attributes:
        type: A pattern for types.
        title: A pattern for titles.
        parameter: A pattern for parameters; `None` for whole resources.
    """

    type: str
    title: str = "*"
    parameter: str | None = None

    @classmethod
    def parse(cls, text: str, *, where: str = "--ignore") -> "ResourcePattern":
        """Return the pattern `TYPE[TITLE]::PARAMETER`; title and parameter are optional.

        Raises:
            InvalidInputError: The text has another form.
        """
        match = _PATTERN.fullmatch(text) if len(text) <= MAX_PATTERN else None
        if match is None:
            raise InvalidInputError(
                f"is not a pattern for resources: {text[:80]!r}",
                where=where,
                hint="TYPE, TYPE[TITLE] or TYPE[TITLE]::PARAMETER, for example 'File[*]::mtime'",
            )
        return cls(
            type=match["type"],
            title="*" if match["title"] is None else match["title"],
            parameter=match["parameter"],
        )

    def fits(self, type_name: str, title: str) -> bool:
        """Return whether the pattern fits the resource, whatever its parameters are."""
        return _matches(self.type, type_name) and _matches(self.title, title)

    def fits_parameter(self, name: str) -> bool:
        """Return whether the pattern fits the parameter of a resource that it fits."""
        return self.parameter is None or _matches(self.parameter, name)

    def hides(self, type_name: str, title: str) -> bool:
        """Return whether the pattern fits the whole resource."""
        return self.parameter is None and self.fits(type_name, title)


class ForbiddenChange(Value):
    """A change that `--fail-on` forbids.

    Attributes:
        action: `added`, `removed` or `changed`; empty for each of them.
        pattern: The resources.
        text: The option's text.
    """

    action: str
    pattern: ResourcePattern
    text: str

    @classmethod
    def parse(cls, text: str, *, where: str = "--fail-on") -> "ForbiddenChange":
        """Return the forbidden change `[ACTION:]TYPE[TITLE]::PARAMETER`.

        Raises:
            InvalidInputError: The text has another form.
        """
        action, colon, rest = text.partition(":")
        if not colon or action not in _ACTIONS:
            raise InvalidInputError(
                f"does not begin with an action: {text[:80]!r}",
                where=where,
                hint="added:, removed: or changed:, for example 'removed:Service[nginx]'",
            )
        return cls(action=action, pattern=ResourcePattern.parse(rest, where=where), text=text)


def _matches(pattern: str, text: str) -> bool:
    """Return whether a text fits; a title of a pull request cannot make that take long."""
    return _compiled(pattern).match(text) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> "re.Pattern[str]":
    return re.compile(translate(pattern.replace("[", "[[]")))
