"""A kick: a trigger to the nodes that have a role, or that a query finds.

- A kick has roles, literally, or a query in the language of `query_nodes`; never both.
- In the inventory, a kick is a list of queries in that language, one for each role.

Example: `Kick(roles=("haproxy",)).texts == ('role="haproxy"',)`.
"""

import re

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.entry import MAX_ROLES, parse_role
from localpuppet.fleet.inventory.query.functions import FunctionCall

_QUOTED, _ESCAPED = re.compile(r'(["\\])'), r"\\\1"


class Kick(Value):
    """The receivers of a kick.

    Attributes:
        roles: Roles; each node that has one of them is a receiver.
        query: An expression; empty if there are roles.
    """

    roles: tuple[str, ...] = ()
    query: str = ""

    @classmethod
    def read(cls, fields: Fields) -> "Kick":
        """Return the kick in the fields `roles` and `query`, which the Puppet modules write.

        Raises:
            InvalidInputError: Both or neither are given, or a role is invalid, or there are too
                many.
        """
        query = fields.text_or_none("query") or ""
        roles = fields.parsed_list("roles", parse_role, maximum=MAX_ROLES)
        if bool(roles) == bool(query.strip()):
            raise InvalidInputError(
                "has roles and a query" if roles else "has neither roles nor a query",
                where="kick",
                hint="kick { 'haproxy': roles => ['haproxy'] }",
            )
        return cls(roles=tuple(dict.fromkeys(roles)), query=query)

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the queries that find the receivers."""
        if self.query:
            return (self.query,)
        return tuple(f'role="{_QUOTED.sub(_ESCAPED, role)}"' for role in self.roles)

    @property
    def question(self) -> FunctionCall:
        """Return the inventory query for the receivers."""
        return FunctionCall.of("query_nodes", [" or ".join(self.texts)])
