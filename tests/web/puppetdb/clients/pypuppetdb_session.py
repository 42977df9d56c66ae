"""Ask an API everything that pypuppetdb can ask, and print its answers as JSON.

Runs with the Python of `scripts/clients`:

    .venv/clients/python/bin/python tests/web/puppetdb/clients/pypuppetdb_session.py PORT
"""

import json
import sys

from pypuppetdb import connect  # type: ignore[import-not-found]
from pypuppetdb.QueryBuilder import AndOperator, EqualsOperator, ExtractOperator, FunctionOperator  # type: ignore[import-not-found]

WEB, DB, LB = "web01.example.com", "db01.example.com", "lb01.example.com"
POPULATION = "puppetlabs.puppetdb.population:name=num-nodes"

db = connect(host="127.0.0.1", port=int(sys.argv[1]), timeout=300)
failed = db.node(DB)
with_status = {node.name: node for node in db.nodes(with_status=True)}
report = next(iter(failed.reports(order_by='[{"field": "end_time", "order": "desc"}]')))
page = list(
    db.reports(order_by='[{"field": "end_time", "order": "asc"}]', limit=2, include_total=True)
)
total = db.total
by_status = ExtractOperator()
by_status.add_field([FunctionOperator("count"), "latest_report_status"])
by_status.add_group_by("latest_report_status")
web_and_kernel = AndOperator()
web_and_kernel.add([EqualsOperator("certname", WEB), EqualsOperator("name", "kernel")])
catalog = db.catalog(WEB)

sys.stdout.write(
    json.dumps(
        {
            "version": db.current_version(),
            "nodes": sorted(node.name for node in db.nodes()),
            "states": {name: node.status for name, node in with_status.items()},
            "failures": with_status[DB].events["failures"],
            "noops": with_status[LB].events["noops"],
            "facts of a node": failed.fact("role").value,
            "facts by value": [fact.node for fact in db.facts("role", "lb")],
            "facts by query": [fact.value for fact in db.facts(query=web_and_kernel)],
            "fact names": {"role", "os"} <= set(db.fact_names()),
            "fact paths": ["os", "family"] in [one["path"] for one in db.fact_paths()],
            "fact contents": sorted(
                one["value"] for one in db.fact_contents(query=EqualsOperator("path", ["role"]))
            ),
            "factsets": sorted(one["certname"] for one in db.factsets()),
            "inventory": {one.node: one.facts["role"] for one in db.inventory()},
            "environments": [one["name"] for one in db.environments()],
            "classes": sorted(
                one.name for one in db.resources("Class", query=EqualsOperator("certname", WEB))
            ),
            "exported": [
                one.parameters["job_name"]
                for one in db.resources(query=EqualsOperator("exported", True))
            ],
            "report": report.status,
            "reports": [one.status for one in page],
            "total": total,
            "logs": [one["message"] for one in report.logs if one["level"] == "err"],
            "metrics of a report": {
                one["name"]: one["value"] for one in report.metrics if one["category"] == "events"
            },
            "events": [
                [event.status, event.item["type"], event.item["title"], event.failed]
                for event in report.events()
                if event.status == "failure"
            ],
            "event counts": {
                one["subject"]["title"]: one["failures"]
                for one in db.event_counts("certname", query=EqualsOperator("latest_report?", True))
            },
            "aggregate": db.aggregate_event_counts(
                "certname", query=EqualsOperator("latest_report?", True)
            ),
            "by status": {
                one["latest_report_status"]: one["count"]
                for one in db._query("nodes", query=by_status)
            },
            "pql": [
                one["certname"]
                for one in db.pql("nodes[certname] { latest_report_status = 'failed' }")
            ],
            "pql of nodes": [one.name for one in db.pql("nodes { certname ~ '^web' }")],
            "resources of a catalog": sorted(
                one.name for one in catalog.get_resources() if one.type_ == "Class"
            ),
            "edges of a catalog": len(catalog.edges) > 0,
            "edges": len(list(db.edges(query=EqualsOperator("certname", WEB))))
            == len(catalog.edges),
            "population": db.metric(POPULATION)["Value"],
            "metrics": "puppetlabs.puppetdb.population" in db.metric(),
        }
    )
)
