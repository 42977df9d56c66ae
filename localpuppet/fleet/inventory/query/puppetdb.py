"""Parse the argument of `puppetdb_query`: PQL as a string, or PuppetDB's AST form as an array."""

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json, type_names
from localpuppet.fleet.inventory.query.ast_form import parse_array
from localpuppet.fleet.inventory.query.pql import parse_pql
from localpuppet.fleet.inventory.query.tree import Select


def parse(query: Json) -> Select:
    """Parse a query.

    Raises:
        InvalidInputError: It is malformed, or uses an unsupported feature.
    """
    if isinstance(query, str):
        return parse_pql(query)
    if isinstance(query, list):
        return parse_array(query)
    raise InvalidInputError(
        f"a query must be a string or an array, not a {type_names[type(query)]}",
        hint="write PQL: 'nodes[certname] { }'",
    )
