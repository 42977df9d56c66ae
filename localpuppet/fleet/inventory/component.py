"""A component in an entry: a part of an application on the node, as its catalog declares it.

- A node's own records are read strictly; too many components are an error.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.text import parse_line
from localpuppet.base.formats.values import Json, field_values

MAX_COMPONENTS = 256
MAX_CAPABILITIES = 64
MAX_NAME = 255
_REFERENCE = re.compile(r"([^:\[]+)[^\[]*(\[.+\])\Z", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeComponent:
    """A part of an application on the node.

    Attributes:
        name: Its reference: `Lamp::Mysql[app1]`.
        application: Its application instance: `Lamp[app1]`.
        produces: The capabilities that other components may consume.
        consumes: The capabilities that it needs.
    """

    name: str
    application: str
    produces: tuple[str, ...]
    consumes: tuple[str, ...]

    @classmethod
    def parse(cls, fields: Fields) -> "NodeComponent":
        """Read the component in an entry, or in a node's own records.

        Raises:
            InvalidInputError: A field is missing, of the wrong type, or too long; or there are too
                many capabilities.
        """
        name = fields.parsed("name", _line)
        return cls(
            name=name,
            application=fields.parsed("application", _line)
            if "application" in fields
            else application_of(name),
            produces=fields.parsed_list("produces", _line, maximum=MAX_CAPABILITIES),
            consumes=fields.parsed_list("consumes", _line, maximum=MAX_CAPABILITIES),
        )

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return field_values(self)


def application_of(name: str) -> str:
    """Return the application in a component's reference: `Lamp[app1]`."""
    reference = _REFERENCE.match(name)
    return name if reference is None else f"{reference[1]}{reference[2]}"


def read_components(noted: Sequence[Fields]) -> tuple[NodeComponent, ...]:
    """Return the components of a catalog, sorted.

    Raises:
        InvalidInputError: A component is invalid, or there are more than an entry may have: a plan
            without the others would be wrong.
    """
    if len(noted) > MAX_COMPONENTS:
        raise InvalidInputError(
            f"has {len(noted)} components; a node publishes at most {MAX_COMPONENTS}",
            where="components of the catalog",
        )
    return tuple(
        sorted(
            map(NodeComponent.parse, noted),
            key=lambda component: (component.application, component.name),
        )
    )


def _line(text: str) -> str:
    parse_line(text, what="name")
    if len(text) > MAX_NAME or text != text.strip():
        raise InvalidInputError(
            f"is not a name: at most {MAX_NAME} characters, no space at its ends"
        )
    return text
