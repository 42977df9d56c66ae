"""`rollout order` without a site: declarations and queries of catalogs, from a real Puppet."""

import json

from localpuppet.fleet.inventory.entry import CatalogQuery
from tests.rigs.fleet import Fleet
from tests.rigs.node import Done

CODE = "application_component { 'Shop::Sql[a]': produces => 'sql/a' }"


def groups(done: Done) -> list[list[str]]:
    assert done.code == 0, done.err
    return [
        [run["node"].partition(".")[0] for run in group["runs"]] for group in done.json["groups"]
    ]


def test_the_order_is_that_of_the_inventory(fleet: Fleet) -> None:
    web, lb = fleet.add("web", "lb")
    (db,) = fleet.add("db", puppet=True)
    nobody = web.run("rollout", "order")
    assert "No site applications were found in the Puppet environment" in nobody.out
    assert "# the inventory has no node yet: " in nobody.err
    db.node.app(CODE)
    raw = json.loads((db.root / "input.yaml").read_text())
    db.node.write("input.yaml", json.dumps({**raw, "parameters": {"role": "db"}}))
    applied = db.run("apply")
    assert applied.code == 0, applied.err
    # Another process publishes as well, and may be late.
    assert db.run("inventory", "publish").code == 0
    found = web.run("rollout", "order", "--json")
    assert (groups(found), found.err) == ([["db"]], "")
    assert found.json["applications"] == ["Shop[a]"]
    (component,) = found.json["groups"][0]["runs"][0]["components"]
    assert (component["name"], component["produces"]) == ("Shop::Sql[a]", ["sql/a"])

    asks = CatalogQuery(text='servers_with_role("db")', digest="0")
    web.publish_entry("web", queries=(asks,))
    lb.publish_entry(
        "lb", queries=(CatalogQuery(text='servers_with_role("web")', digest="0"), asks)
    )
    assert groups(web.run("rollout", "order", "--json")) == [["db"], ["web"], ["lb"]]
    narrowed = web.run("rollout", "order", "--json", "--role", "lb", "--role", "db")
    assert groups(narrowed) == [["db"], ["lb"]]
    refused = web.run("rollout", "run", "--role", "nosuch")
    assert (refused.code, "--role: no node has the role nosuch" in refused.err) == (2, True)
    refused = web.run("rollout", "run", "--role", "lb", "--one-at-a-time-by", "datacenter")
    assert (refused.code, "no single value of fact 'datacenter'" in refused.err) == (2, True)


def test_nodes_that_are_online_without_an_entry_are_named_and_no_rollout_misses_them(
    fleet: Fleet,
) -> None:
    a, b, operator = fleet.add("a", "b", "operator")
    a.start()
    b.start()
    fleet.present(a, b)
    a.publish_entry("web")
    warning = f"online without an entry of a good run: {b.name}"
    for words in (["rollout", "order"], ["query", "role=web"]):
        done = operator.run(*words)
        assert (done.code, a.name in done.out, warning in done.err) == (0, True, True)
    miss = f"the rollout would miss online nodes without an entry: {b.name}"
    for words in ([], ["--role", "web"], ["--order", "none", "--query", "role=web"]):
        refused = operator.run("rollout", "run", *words)
        assert (refused.code, miss in refused.err) == (2, True)
    for words in (["--without", str(b.name)], ["--nodes", str(a.name)]):
        assert miss not in operator.run("rollout", "run", *words).err
    b.publish_entry("web")
    assert operator.run("query", "role=web").err == ""
    none = operator.run("rollout", "run", "--without", f"{a.name},{b.name}")
    assert (none.code, "the selection matches no node" in none.err) == (2, True)
