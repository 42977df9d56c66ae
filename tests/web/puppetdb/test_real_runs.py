"""Catalogs of real runs, from the API of a real process."""

import json
from typing import Any
from urllib.parse import urlencode

from tests.fleet.catalogs.test_runs import RIGHT, vault
from tests.fleet.exports.test_runs import applied
from tests.rigs.fleet import Fleet
from tests.rigs.waiting import wait_until
from tests.web.puppetdb.clients.replay import exchange
from tests.web.puppetdb.served import V4
from tests.web.puppetdb.test_command import Api


def test_catalogs_are_published_or_requested_and_no_node_is_left_out(nats_fleet: Fleet) -> None:
    (a,) = nats_fleet.add("a", puppet=True, inventory={"catalogs": True})
    b, c = nats_fleet.add("b", "c", puppet=True)
    vault(a)
    b.node.app("notify { 'of b': }")
    for member in (a, b):
        applied(member)
    nats_fleet.start()
    api = Api(c.node, "127.0.0.1:0")

    def ask(path: str, query: object = None) -> tuple[int, Any]:
        asked = "" if query is None else "?" + urlencode({"query": json.dumps(query)})
        return exchange(api.url, "GET", f"{V4}/{path}{asked}")

    try:
        wait_until(lambda: len(ask("nodes")[1]) == 2, lambda: str(ask("nodes")))
        code, found = ask(f"catalogs/{a.name}")
        assert code == 200, found
        by_title = {one["title"]: one["parameters"] for one in found["resources"]["data"]}
        assert by_title["vault"] == {
            "options": {"deep": ["Sensitive [value redacted]"], "port": 5432},
            "late": "Deferred [value redacted]",
        }
        assert "CANARY-one" not in json.dumps(found)
        (edge,) = (one for one in found["edges"]["data"] if one["relationship"] == "required-by")
        assert edge["target_type"] == "File"

        code, text = ask(f"catalogs/{b.name}")
        assert (code, "no policy" in text) == (503, True)
        b.node.write("policies/puppet.policy", RIGHT.format(who=c.name))
        code, found = ask(f"catalogs/{b.name}/resources/Notify")
        assert (code, [one["title"] for one in found]) == (200, ["of b"])
        b.kill()
        assert ask(f"catalogs/{b.name}/edges")[0] == 200, "the catalog of some seconds ago"

        code, text = ask("resources", ["=", "type", "Notify"])
        assert (code, f"1 of 2 nodes do not publish their catalog: {b.name}" in text) == (400, True)
        assert ask("catalogs/gone.example.com")[0] == 404
    finally:
        assert api.end() == 0
