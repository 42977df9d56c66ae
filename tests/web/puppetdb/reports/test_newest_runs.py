"""The newest runs of all nodes are in memory, and follow the changes of runs."""

from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.records import RecordHint
from localpuppet.fleet.inventory.query.tree import Entity
from localpuppet.fleet.inventory.run_end import Kind
from tests.web.puppetdb.reports.played_runs import MINUTE, NOW, PlayedRuns, node, run

EVERY = RecordHint()


def test_the_newest_runs_of_all_nodes_are_read_once_until_runs_change() -> None:
    played = PlayedRuns([run("a", NOW - MINUTE)], [node("a", state="idle")])
    statements: list[str] = []
    played.connection.set_trace_callback(statements.append)

    def statuses() -> list[Json]:
        return [
            row["latest_report_status"] for row in played.records.rows(Entity.NODES, EVERY).rows
        ]

    assert [statuses(), statuses()] == [["unchanged"], ["unchanged"]]
    assert sum("FROM latest" in text for text in statements) == 1
    played.add(run("a", NOW - 1, Kind.FAILED))
    assert statuses() == ["failed"]
    played.connection.execute("DELETE FROM runs")
    assert statuses() == []
