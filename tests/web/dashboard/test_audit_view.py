"""The audit view: who requested what, and what nodes decided."""

import json

from tests.web.dashboard.decisions import ROLLOUT, decided
from tests.web.dashboard.site import NAME, PlayedActor, Site, text
from tests.web.dashboard.test_action_views import NOOP, hidden


def listed(page: str) -> list[str]:
    return [one["caller"] for one in json.loads(page)["audit"]]


def test_requests_are_listed_filtered_and_exported(site: Site) -> None:
    decided(site)
    with site.visitor() as client:
        page = text(client, "/audit")
        for words in ("choria=alice", "disk is full, for 2h", f'href="/rollouts/{ROLLOUT}"'):
            assert words in page
        assert "<script>alert" not in page
        assert "read-only" in page, "the view needs no actions"
        everyone = ["choria=alice", "choria=bob", "choria=eve"]
        assert listed(text(client, "/audit.json")) == everyone
        assert listed(text(client, "/audit.json?sort=at")) == everyone[::-1]
        for query, callers in {
            "caller=choria%3Dbob": ["choria=bob"],
            "node=web01": ["choria=alice", "choria=eve"],
            "action=disable": ["choria=alice"],
            "decision=refused": ["choria=eve"],
            "name=DISK+is": ["choria=alice"],
            "rollouts=without+rollouts": ["choria=alice", "choria=eve"],
            f"name={ROLLOUT}": ["choria=bob"],
            "node=web03": [],
        }.items():
            assert listed(text(client, f"/audit.json?{query}")) == callers, query
        assert "'=cmd()" in text(client, "/audit.csv")
        assert text(client, "/audit.txt") == "web01\nweb02\n"
        for query in ("decision=maybe", "rollouts=maybe"):
            assert client.get(f"/audit?{query}").status_code == 400
        assert 'href="/audit?node=web01"' in text(client, "/nodes/web01")


def test_actions_of_the_dashboard_are_listed_even_if_no_node_answered(site: Site) -> None:
    actor = site.actor = PlayedActor()
    actor.dead = {"web01"}
    with site.visitor() as client:
        client.headers["origin"] = f"http://{NAME}.localhost:{site.port}"
        client.post("/nodes/do/noop", data=hidden(text(client, NOOP)))
        (sent,) = json.loads(text(client, "/audit.json"))["audit"]
        assert (sent["node"], sent["caller"], sent["action"], sent["decision"]) == (
            actor.machine,
            "choria=alice",
            "send",
            "refused",
        )
        assert sent["subject"] == "noop: 1 no answer; web01"
        assert f'href="/nodes/{actor.machine}"' not in text(client, "/audit")
