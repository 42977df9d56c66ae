"""Compare the answers of `puppetdb_query` with those of a real PuppetDB: same facts, same classes.

Starts PuppetDB (`puppetdb_server.py` says what that needs), loads a fleet of simulated nodes into
PuppetDB and into localpuppet, asks both the queries of `puppetdb_queries.py`, and prints a table.

    benchmarks/puppetdb.py [--nodes 12] [--differences]
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the inventory of the tests

from puppetdb_queries import QUERIES, exports_of, fleet
from puppetdb_server import running

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.query.functions import FunctionCall
from tests.doubles.inventory import MemoryInventory

# Columns that only one of the two can know.
SPARE = ("timestamp", "facts_timestamp", "catalog_timestamp", "resource")
OF_REPORTS = ("report", "latest_report", "cached_catalog_status", "expires_facts")


def ours(entries: Sequence[InventoryEntry], query: Json) -> list[Json] | str:
    """Return the rows of localpuppet, or its error."""
    try:
        exports = {str(entry.node): exports_of(entry) for entry in entries}
        reader = MemoryInventory(entries, exports=exports)
        result = FunctionCall.of("puppetdb_query", [query]).answer(reader).result
    except LocalpuppetError as error:
        return str(error)[:80]
    return result if isinstance(result, list) else []


def normal(rows: list[Json], query: Json) -> list[str]:
    """Return rows as texts that compare, sorted unless the query says how."""
    kept = []
    for row in rows:
        if not isinstance(row, dict):
            kept.append(json.dumps(row))
            continue
        shown = {
            key: value
            for key, value in row.items()
            if key not in SPARE and not key.startswith(OF_REPORTS)
        }
        facts = shown.get("facts")
        if isinstance(facts, dict):
            shown["facts"] = {key: value for key, value in facts.items() if key != "trusted"}
        tags = shown.get("tags")
        if isinstance(tags, list):
            shown["tags"] = [*sorted(map(str, tags))]  # PuppetDB keeps them in no order
        kept.append(json.dumps(shown, sort_keys=True))
    ordered = "order" in json.dumps(query)
    return kept if ordered else sorted(kept)


def main() -> None:
    """Compare, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=12, help="how many nodes")
    parser.add_argument("--differences", action="store_true", help="print the rows that differ")
    chosen = parser.parse_args()
    entries = fleet(chosen.nodes)
    differ = 0
    with running() as server:
        for entry in entries:
            server.load(entry, exports_of(entry))
        print("| query | PuppetDB | localpuppet |\n|---|---|---|")
        for query in QUERIES:
            theirs, mine = server.ask(query), ours(entries, query)
            same = (
                not isinstance(theirs, str)
                and not isinstance(mine, str)
                and normal(theirs, query) == normal(mine, query)
            )
            differ += not same
            text = (query if isinstance(query, str) else json.dumps(query)).replace("|", "\\|")
            print(f"| `{text}` | {_shown(theirs)} | {_shown(mine)}{'' if same else ' ≠'} |")
            if chosen.differences and not same:
                print(f"  PuppetDB:    {str(theirs)[:600]}\n  localpuppet: {str(mine)[:600]}")
    print(f"\n{len(QUERIES)} queries, {len(QUERIES) - differ} with the same answer")
    sys.exit(differ > 0)


def _shown(answer: list[Json] | str) -> str:
    return "rejected" if isinstance(answer, str) else str(len(answer))


if __name__ == "__main__":
    main()
