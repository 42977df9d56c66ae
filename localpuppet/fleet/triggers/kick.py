"""A kick: a trigger to whichever nodes have a role, or are found by a query.

Owns: what a kick is addressed to, and its one written form. Refuses to know: who is there, and how
triggers are sent.

- A kick names roles, literally, or has a query in the language of `query_nodes`; never both.
- Its written form, as the inventory has it, is queries in that language, one for each role.

Example: `Kick(roles=("haproxy",)).texts == ('role="haproxy"',)`.
"""

import re
from dataclasses import dataclass

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.fleet.inventory.entry import MAX_ROLES, parse_role
from localpuppet.fleet.inventory.query.functions import Question

_QUOTED, _ESCAPED = re.compile(r'(["\\])'), r"\\\1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kick:
    """Who is kicked.

    Attributes:
        roles: Roles; each node that has one of them.
        query: An expression; empty where there are roles.
    """

    roles: tuple[str, ...] = ()
    query: str = ""

    @classmethod
    def read(cls, fields: Fields) -> "Kick":
        """Return the kick in the fields `roles` and `query`, as our Puppet modules write them.

        Raises:
            InvalidInputError: Both are there, or neither; a role is refused, or there are too many.
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
        """Return the queries that find its receivers."""
        if self.query:
            return (self.query,)
        return tuple(f'role="{_QUOTED.sub(_ESCAPED, role)}"' for role in self.roles)

    @property
    def question(self) -> Question:
        """Return what is asked of the inventory: who is to run.

        Raises:
            InvalidInputError: It is too large.
        """
        return Question.of("query_nodes", [" or ".join(self.texts)])
