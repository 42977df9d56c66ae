"""Catalogs and runs of a whole fleet in PuppetDB, for `puppetdb_api.py`.

A few nodes come by PuppetDB's own commands. Catalogs and reports of the others are copies of theirs
in PostgreSQL, each with its own name and time: by commands, 10,000 nodes take hours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from puppetdb_runs import report_of, stamp
from puppetdb_server import PuppetDb

from localpuppet.fleet.history.history_records import RunSummary

DAY = 86400.0
_NODES = """
CREATE TEMPORARY TABLE copies AS
SELECT number, format('n%s.example.com', to_char(number, 'FM00000')) AS name,
       format('n%s.example.com', to_char(number % {models}, 'FM00000')) AS model
FROM generate_series(0, {nodes} - 1) AS number;
"""
_CATALOGS = """
INSERT INTO catalogs (hash, certname, producer_timestamp, api_version, timestamp, catalog_version,
                      environment_id)
SELECT substring(sha256(('catalog ' || name)::bytea) for 20), name, producer_timestamp, api_version,
       timestamp, catalog_version, environment_id
FROM copies JOIN catalogs ON certname = model WHERE number >= {models};
INSERT INTO catalog_resources (resource, tags, type, title, exported, file, line, certname_id)
SELECT resource, tags, type, title, exported, file, line, copied.id
FROM copies JOIN certnames AS old ON old.certname = model
            JOIN catalog_resources ON certname_id = old.id
            JOIN certnames AS copied ON copied.certname = name
WHERE number >= {models};
"""
# The kind of a run depends on the sum of node and step: as `kind` in `puppetdb_api.py`.
_RUNS = """
CREATE TEMPORARY TABLE kinds AS
SELECT kind - 1 AS kind, reports.id AS model_id FROM unnest(ARRAY[{hashes}])
WITH ORDINALITY AS listed (hash, kind) JOIN reports ON encode(reports.hash, 'hex') = listed.hash;
CREATE TEMPORARY TABLE runs AS
SELECT number, step, model_id, nextval('reports_id_seq') AS id,
       substring(sha256(format('%s %s', name, step)::bytea) for 20) AS hash, name,
       to_timestamp({now} - {every} * (step + 1 - number::float / {nodes})) AS ended
FROM copies CROSS JOIN generate_series(0, {steps} - 1) AS step
JOIN kinds ON kind = least((step + number) % 20, 3);
"""
_DAY = """
INSERT INTO reports_{day}z (id, hash, transaction_uuid, certname, puppet_version, report_format,
  configuration_version, start_time, end_time, receive_time, noop, environment_id, status_id,
  metrics, logs, producer_timestamp, cached_catalog_status, noop_pending, corrective_change)
SELECT runs.id, runs.hash, gen_random_uuid(), name, puppet_version, report_format,
  configuration_version, ended - interval '5 s', ended, ended, noop, environment_id, status_id,
  metrics, logs, ended, cached_catalog_status, noop_pending, corrective_change
FROM runs JOIN reports ON reports.id = model_id
WHERE to_char(ended AT TIME ZONE 'UTC', 'YYYYMMDD') = '{day}';
INSERT INTO resource_events_{day}z (event_hash, report_id, certname_id, status, timestamp,
  resource_type, resource_title, file, line, containment_path, containing_class)
SELECT substring(sha256(runs.hash || event_hash) for 20), runs.id, certnames.id, status, ended,
  resource_type, resource_title, file, line, containment_path, containing_class
FROM runs JOIN resource_events ON report_id = model_id JOIN certnames ON certname = runs.name
WHERE to_char(ended AT TIME ZONE 'UTC', 'YYYYMMDD') = '{day}';
"""
_LATEST = """
UPDATE certnames SET latest_report_id = runs.id, latest_report_timestamp = ended
FROM runs WHERE certname = name AND step = 0;
ANALYZE;
"""


@dataclass(frozen=True, kw_only=True)
class History:
    """The runs of a fleet.

    Attributes:
        nodes: The number of nodes.
        models: How many of them PuppetDB gets by commands.
        now: When the newest run ended, in seconds since 1970.
        every: Seconds between two runs of a node.
        steps: The number of runs of each node.
    """

    nodes: int
    models: int
    now: float
    every: float
    steps: int

    def ended(self, number: int, step: int) -> float:
        """Return when a run of a node ended; step 0 is the last one."""
        return self.now - self.every * (step + 1 - number / self.nodes)

    @property
    def days(self) -> list[float]:
        """Return a time in each UTC day with runs."""
        first = int((self.now - self.every * (self.steps + 1)) // DAY)
        return [day * DAY for day in range(first, int(self.now // DAY) + 1)]


def load_runs(server: PuppetDb, history: History, kinds: Sequence[RunSummary]) -> None:
    """Give PuppetDB the catalogs and reports of nodes whose facts it has.

    Args:
        server: PuppetDB, with facts of all nodes and catalogs of the models.
        history: The runs.
        kinds: A run of each kind.
    """
    model = "model.example.com"
    hashes = []
    for run in kinds:
        report = report_of(model, run)
        server.store_report(report)
        rows = server.ask(
            ["from", "reports", ["=", "transaction_uuid", report["transaction_uuid"]]]
        )
        assert isinstance(rows[0], dict), rows
        hashes.append(f"'{rows[0]['hash']}'")
    for day in history.days:  # PuppetDB makes the tables of a day for its first report and event
        server.store_report(report_of(model, replace(kinds[1], started_at=day, finished_at=day)))
    values = {**vars(history), "hashes": ", ".join(hashes)}
    days = [stamp(day)[:10].replace("-", "") for day in history.days]
    statements = [_NODES, _CATALOGS, _RUNS, *(_DAY.replace("{day}", day) for day in days), _LATEST]
    server.execute("".join(part.format(**values) for part in statements))
