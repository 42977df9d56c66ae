"""Answer a client of PuppetDB's API: rows as JSON texts, one after the other.

- `client_query.parse_client_query` parses a request; `answer` evaluates it. Functions in catalogs
  and `localpuppet query` use the same evaluator through `functions`.
- Rows arrive while the inventory is read. A query without order, group and total holds none of them
  in memory.
- The rows of one answer must be read in one thread: they come from one SQLite snapshot. Close the
  iterator to end a query early.
- A query that cannot be answered raises an error, and never yields an empty answer:
  `InvalidInputError` for the query itself (PuppetDB answers 400 with the message as plain text),
  `QueryDeadlineError` and `UnavailableError` for the rest. An error in the middle of the rows is
  raised by the iterator.

Example: `elements(answer(select, reader=view, records=source).rows)` is the body of a response.
"""

from localpuppet.fleet.inventory.query.budget import QueryLimits
from localpuppet.fleet.inventory.query.evaluating import ClientAnswer, Evaluation
from localpuppet.fleet.inventory.query.records import RecordSource
from localpuppet.fleet.inventory.query.tree import Select
from localpuppet.fleet.inventory.reading import InventoryReader


def answer(
    select: Select,
    *,
    reader: InventoryReader,
    records: RecordSource | None = None,
    limits: QueryLimits | None = None,
    total: bool = False,
) -> ClientAnswer:
    """Evaluate a query.

    Args:
        select: The query.
        reader: The entries of nodes.
        records: The rows that entries do not have; `None` for none.
        limits: The limits and the deadline.
        total: Whether to count all rows (`include_total`, the header `X-Records`).

    Raises:
        InvalidInputError: The query is invalid or exceeds a limit.
        QueryDeadlineError: It took too long.
        UnavailableError: A source cannot be read now.
    """
    return Evaluation(reader, records, limits).stream(select, total=total)
