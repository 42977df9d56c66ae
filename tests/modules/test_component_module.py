"""The type `application_component` with the real Puppet."""

import json

from tests.rigs.bench import Bench


def noted(bench: Bench) -> list[dict[str, object]]:
    file = bench.directory / "public" / "components.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_puppet_records_components_and_reports_no_change(bench: Bench) -> None:
    """Puppet also records a component that tags exclude from this run."""
    done = bench.apply(
        """
        application_component { 'Lamp::Mysql[app1]': produces => 'Sql[app1]', tag => 'db' }
        application_component { 'Lamp::Web[app1-1]':
          application => 'Lamp[app1]',
          consumes    => ['Sql[app1]', 'Cache[app1]', 'Sql[app1]'],
        }
        """,
        "--tags",
        "db",
        LOCALPUPPET_RUN="run-1",
    )
    assert done.code == 0, done.text
    assert noted(bench) == [
        {"schema": 1, "name": "Lamp::Mysql[app1]", "produces": ["Sql[app1]"], "consumes": []},
        {
            "schema": 1,
            "name": "Lamp::Web[app1-1]",
            "produces": [],
            "consumes": ["Cache[app1]", "Sql[app1]"],
            "application": "Lamp[app1]",
        },
    ]


def test_an_invalid_component_is_refused(bench: Bench) -> None:
    done = bench.apply("application_component { 'Lamp::Mysql[app1]': produces => ['a', ' b'] }")
    assert done.code == 1
    assert "must be a string of 1 to 255 characters on one line" in done.text
    assert noted(bench) == []
