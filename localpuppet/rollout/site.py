"""A site: applications, their components with checks, and what these produce and consume.

    http://%{node}:8080/health
    [/usr/local/bin/probe, '%{node}']

- `%{node}` is replaced by the node's name.
- A command is an argument vector, without a shell.

The site file and Puppet's environment graph (4.x and 5.x, `/puppet/v3/environment/NAME`) have the
same form; the site file adds `checks`:

    environment: production
    applications:
      Lamp[app1]:
        Lamp::Mysql[app1]: {node: db1.example.com, produces: ['Sql[app1]']}
        Lamp::Webapp[app1-1]:
          node: web1.example.com
          consumes: ['Sql[app1]']
          checks: ['http://%{node}/health', [/usr/local/bin/probe, '%{node}']]

- A component is one part of one application on one node.
- A capability is only a name; the same name is the same capability in every application.
"""

import re
import shlex
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import EnvironmentName, NodeName, did_you_mean
from localpuppet.base.formats.text import one_line, parse_line, shown_key, url_without_secrets
from localpuppet.base.formats.values import Json, at, wrong_type
from localpuppet.base.value import Value

MAX_WORDS = 64  # in a command
MAX_CHECK = 4096  # characters of a URL, or of all words together
_PLACEHOLDER = re.compile(r"%\{([^}]*)\}")
_URL = re.compile(r"https?://[^\s/@]+(?:/\S*)?\Z")

Check = str | tuple[str, ...]


def parse_check(value: Json, where: str) -> Check:
    """Return the check in a document: a URL, or a list of words."""
    if isinstance(value, str):
        return _url(value, where, hint="write a command as a list: [/usr/local/bin/probe, --fast]")
    if not isinstance(value, list):
        raise wrong_type(value, "a URL or a list", where)
    words = _each(value, where, MAX_WORDS, _word)
    if not words or not words[0].startswith("/"):
        raise InvalidInputError(
            "is not a command: a list whose first element is a path", where=where
        )
    _refuse_long("".join(words), where)
    return words


def parse_text(text: str, *, where: str) -> Check:
    """Return the check that a person wrote as one text: a URL, or a command line.

    Quotes work as in a shell; other shell syntax does not.
    """
    if text.startswith(("http://", "https://")):
        return parse_check(text, where)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidInputError(f"has unbalanced quotes: {error}", where=where) from error
    if not words or not words[0].startswith("/"):
        raise InvalidInputError(
            "is neither an http or https URL nor a command that begins with a path",
            where=where,
            hint="--check 'http://%{node}/health' or --check '/usr/local/bin/probe %{node}'",
        )
    return parse_check([*words], where)


def on_node(check: Check, node: NodeName) -> Check:
    """Return the check of one node, with `%{node}` replaced."""
    if isinstance(check, str):
        return check.replace("%{node}", node)
    return tuple(word.replace("%{node}", node) for word in check)


def shown(check: Check) -> str:
    """Return a check for messages, without arguments and queries, which may be secret."""
    return url_without_secrets(check) if isinstance(check, str) else check[0]


def to_json(check: Check) -> str | list[str]:
    return check if isinstance(check, str) else list(check)


def _url(text: str, where: str, *, hint: str) -> str:
    _placeholders(text, where)
    if not _URL.match(text) or not _has_host(text):
        raise InvalidInputError(
            "is not an http or https URL without a user", where=where, hint=hint
        )
    _refuse_long(text, where)
    return text


def _has_host(text: str) -> bool:
    """Return whether a URL has a host and a possible port."""
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _word(value: Json, where: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(value, "a string", where)
    if "\0" in value:
        raise InvalidInputError("has a NUL character, which an argument cannot have", where=where)
    _placeholders(value, where)
    return value


def _placeholders(text: str, where: str) -> None:
    for match in _PLACEHOLDER.finditer(text):
        if match[1] != "node":
            raise InvalidInputError(
                f"unknown placeholder {shown_key(match[1])}", where=where, hint="write %{node}"
            )


def _refuse_long(text: str, where: str) -> None:
    if len(text) > MAX_CHECK:
        raise InvalidInputError(
            f"has {len(text)} characters; at most {MAX_CHECK} are allowed", where=where
        )


MAX_COMPONENTS = 250_000
MAX_CAPABILITIES = 10_000  # produced or consumed by one component
MAX_NAME = 255
MAX_CHECKS = 20
ENVIRONMENT = "production"
_SITE = ("environment", "applications", "code_id")
_COMPONENT = ("node", "produces", "consumes", "checks")
# Most names are plain; checking that first saves an eighth of the time for a large site.
_PLAIN = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?\Z")

T = TypeVar("T")


class SiteComponent(Value):
    """A part of an application on one node, such as `Lamp::Mysql[app1]` of `Lamp[app1]`.

    Checks are URLs, or argument vectors of commands. If it is not declared, it represents relations
    of nodes (queries, kicks), which give an order but are not a need.
    """

    application: str
    name: str
    node: NodeName
    produces: tuple[str, ...] = ()
    consumes: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    declared: bool = True

    def __str__(self) -> str:
        return f"{self.name} of {self.application} on {self.node}"


class EnvironmentSite(Value):
    """The applications of an environment, also those without components; all sorted."""

    environment: str
    applications: tuple[str, ...]
    components: tuple[SiteComponent, ...]

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json], *, where: str) -> "EnvironmentSite":
        """Return the site that a document describes."""
        _only(raw, _SITE, where)
        if "applications" not in raw:
            raise InvalidInputError("the key 'applications' is missing (required)", where=where)
        place = f"{where}: applications"
        applications = _mapping(raw["applications"], place)
        environment = raw.get("environment", ENVIRONMENT)
        if not isinstance(environment, str):
            raise wrong_type(environment, "a string", f"{where}: environment")
        reader = _Reader()
        for application, components in applications.items():
            inner = at(place, _shown(application))
            reader.application(application, _mapping(components, inner), inner)
        by_name = reader.components
        # No name has a NUL, which sorts first: the order of tuples in half the time.
        by_name.sort(
            key=lambda component: f"{component.node}\0{component.application}\0{component.name}"
        )
        return cls(
            environment=EnvironmentName.parse(environment, where=f"{where}: environment"),
            applications=tuple(sorted(applications)),
            components=tuple(by_name),
        )


class _Reader:
    """Reads components; checks a name that is repeated in a document only once."""

    def __init__(self) -> None:
        self.components: list[SiteComponent] = []
        self._nodes: dict[str, NodeName] = {}
        self._names: dict[str, str] = {}

    def application(self, application: str, components: Mapping[str, Json], where: str) -> None:
        self._name(application, where)
        if len(self.components) + len(components) > MAX_COMPONENTS:
            raise InvalidInputError(
                f"has too many components: at most {MAX_COMPONENTS} are allowed",
                where=where,
                hint="plan parts of the site",
            )
        for name, body in components.items():
            # Breadcrumbs are built only for messages: this loop takes most of the time.
            try:
                self.components.append(self._component(application, name, body))
            except InvalidInputError as error:
                raise _behind(error, at(where, _shown(name))) from error

    def _component(self, application: str, name: str, body: Json) -> SiteComponent:
        self._name(name, "")
        raw = _mapping(body, "")
        for key in raw:
            if key not in _COMPONENT:
                _only(raw, _COMPONENT, "")
        if "node" not in raw:
            raise InvalidInputError("the key 'node' is missing (required)")
        checks = raw.get("checks")
        return SiteComponent(
            application=application,
            name=name,
            node=self._node(raw["node"]),
            produces=self._capabilities(raw.get("produces"), "produces"),
            consumes=self._capabilities(raw.get("consumes"), "consumes"),
            checks=() if checks is None else _each(checks, "checks", MAX_CHECKS, parse_check),
        )

    def _node(self, value: Json) -> NodeName:
        if not isinstance(value, str):
            raise wrong_type(value, "a node's name", "node")
        name = self._nodes.get(value)
        if name is None:
            try:
                name = self._nodes[value] = NodeName.parse(value)
            except InvalidInputError as error:
                raise _behind(error, "node") from error
        return name

    def _capabilities(self, value: Json, key: str) -> tuple[str, ...]:
        if value is None:
            return ()
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
            known = self._names.get(value[0])  # a fast path for most lists of a large site
            if known is not None:
                return (known,)
        return tuple(sorted(set(_each(value, key, MAX_CAPABILITIES, self._name))))

    def _name(self, value: Json, where: str) -> str:
        if not isinstance(value, str):
            raise wrong_type(value, "a string", where)
        name = self._names.get(value)
        if name is None:
            if not _PLAIN.match(value):
                _check_name(value, where)
            name = self._names[value] = value
        return name


def _check_name(text: str, where: str) -> None:
    try:
        parse_line(text, what="name")
    except InvalidInputError as error:
        raise _behind(error, where) from error
    if len(text) > MAX_NAME or text != text.strip():
        raise InvalidInputError(
            f"is not a name: at most {MAX_NAME} characters, no space at its ends", where=where
        )


def _each(value: Json, where: str, most: int, parse: Callable[[Json, str], T]) -> tuple[T, ...]:
    """Return what `parse` returns for each element of a list."""
    if not isinstance(value, list):
        raise wrong_type(value, "a list", where)
    if len(value) > most:
        raise InvalidInputError(
            f"has {len(value)} elements; at most {most} are allowed", where=where
        )
    return tuple([parse(item, at(where, index)) for index, item in enumerate(value)])


def _shown(name: str) -> str:
    """Return a name for a breadcrumb, truncated."""
    return one_line(name)[:80]


def _mapping(value: Json, where: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise wrong_type(value, "a mapping", where)
    return value


def _only(raw: Mapping[str, Json], known: Collection[str], where: str) -> None:
    for key in raw:
        if key not in known:
            raise InvalidInputError(
                f"unknown key {shown_key(key)}", where=where, hint=did_you_mean(key, list(known))
            )


def _behind(error: InvalidInputError, where: str) -> InvalidInputError:
    """Return the same error with its breadcrumb behind `where`."""
    place = at(where, error.where) if error.where else where
    return InvalidInputError(error.what, where=place, hint=error.hint)
