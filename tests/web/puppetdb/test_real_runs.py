"""Catalogs of real runs, from the API of a real process."""

import json
import re
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlencode

from tests.fleet.catalogs.test_runs import RIGHT, vault
from tests.fleet.exports.test_runs import applied
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member, read_line
from tests.rigs.waiting import PATIENCE, wait_until
from tests.web.puppetdb.served import V4


class Api:
    """The API of a process."""

    def __init__(self, member: Member) -> None:
        options = ("--puppetdb", "127.0.0.1:0", "--no-dashboard")
        self.process = member.node.start("web", *options)
        found = re.search(r"http://([^/\s]+)", read_line(self.process))
        assert found is not None
        self.place = found[1]

    def ask(self, path: str, query: object = None) -> tuple[int, Any]:
        asked = "" if query is None else "?" + urlencode({"query": json.dumps(query)})
        connection = HTTPConnection(self.place, timeout=PATIENCE)
        try:
            connection.request("GET", f"{V4}/{path}{asked}")
            came = connection.getresponse()
            text = came.read().decode()
            return came.status, json.loads(text) if came.status == 200 else text
        finally:
            connection.close()

    def close(self) -> None:
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def test_catalogs_are_published_or_requested_and_no_node_is_left_out(nats_fleet: Fleet) -> None:
    (a,) = nats_fleet.add("a", puppet=True, inventory={"catalogs": True})
    b, c = nats_fleet.add("b", "c", puppet=True)
    vault(a)
    b.node.app("notify { 'of b': }")
    for member in (a, b):
        applied(member)
    nats_fleet.start()
    api = Api(c)
    try:
        wait_until(lambda: len(api.ask("nodes")[1]) == 2, lambda: str(api.ask("nodes")))
        code, found = api.ask(f"catalogs/{a.name}")
        assert code == 200, found
        by_title = {one["title"]: one["parameters"] for one in found["resources"]["data"]}
        assert by_title["vault"] == {
            "options": {"deep": ["Sensitive [value redacted]"], "port": 5432},
            "late": "Deferred [value redacted]",
        }
        assert "CANARY-one" not in json.dumps(found)
        (edge,) = (one for one in found["edges"]["data"] if one["relationship"] == "required-by")
        assert edge["target_type"] == "File"

        code, text = api.ask(f"catalogs/{b.name}")
        assert (code, "no policy" in text) == (503, True)
        b.node.write("policies/puppet.policy", RIGHT.format(who=c.name))
        code, found = api.ask(f"catalogs/{b.name}/resources/Notify")
        assert (code, [one["title"] for one in found]) == (200, ["of b"])
        b.kill()
        assert api.ask(f"catalogs/{b.name}/edges")[0] == 200, "the catalog of some seconds ago"

        code, text = api.ask("resources", ["=", "type", "Notify"])
        assert (code, f"1 of 2 nodes do not publish their catalog: {b.name}" in text) == (400, True)
        assert api.ask("catalogs/gone.example.com")[0] == 404
    finally:
        api.close()
