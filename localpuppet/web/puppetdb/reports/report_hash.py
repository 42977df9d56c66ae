"""The hash of a report: 40 hex digits for a node's run, from which the run can be found.

It has the form of the SHA-1 digest that PuppetDB uses. 19 digits are the id of the run, the digits
that differ most first; 21 are of a digest of the node's name.
"""

import hashlib
import re
from functools import lru_cache

from localpuppet.base.formats.names import RunId
from localpuppet.web.dashboard.tables.run_table import MOMENTS, number_of, run_of

_HASH = re.compile(r"([0-9a-f]{19})([0-9a-f]{21})\Z")
_NODE_DIGITS = 21
# The first number that is no id: of the year 10000.
_END = 2_932_897 * MOMENTS


def report_hash(node: str, run: str) -> str:
    """Return the hash of the report of a node's run."""
    return hash_of(node, number_of(RunId(run)))


def hash_of(node: str, number: int) -> str:
    """Return the hash of a report, see `run_table.number_of`."""
    return f"{number:019x}"[::-1] + node_digits(node)


def parse_hash(text: object) -> tuple[RunId, str] | None:
    """Return the run's id and the digits of its node; `None` if no run has this hash."""
    match = _HASH.match(text) if isinstance(text, str) else None
    if match is None:
        return None
    number = int(match[1][::-1], 16)
    return (run_of(*divmod(number, MOMENTS)), match[2]) if number < _END else None


@lru_cache(maxsize=32_768)
def node_digits(node: str) -> str:
    """Return the digits of a node in the hashes of its reports."""
    return hashlib.sha256(node.encode()).hexdigest()[:_NODE_DIGITS]
