"""What `puppetdb_query` takes: PQL in a string, PuppetDB's array form in an array."""

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json, type_names
from localpuppet.fleet.inventory.query.ast_form import parse_array
from localpuppet.fleet.inventory.query.pql import parse_pql
from localpuppet.fleet.inventory.query.tree import Select


def parse(query: Json) -> Select:
    """Return the question in a query.

    Raises:
        InvalidInputError: It is malformed, or asks for what is not answered.
    """
    if isinstance(query, str):
        return parse_pql(query)
    if isinstance(query, list):
        return parse_array(query)
    raise InvalidInputError(
        f"a query must be a string or an array, not a {type_names[type(query)]}",
        hint="write PQL: 'nodes[certname] { }'",
    )
