"""The canonical form of a catalog has what PuppetDB would store, sorted and without secrets."""

import json
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.puppet.catalog import CanonicalCatalog, CatalogEdge

STORED = "/var/lib/localpuppet/releases/4be10000000000000000000000000000/web/manifests/init.pp"


def resource(kind: str, title: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "title": title, "exported": False, "tags": [], **more}


def catalog(*resources: dict[str, Any], **more: Any) -> CanonicalCatalog:
    raw = {"name": "web1", "environment": "production", "classes": [], "edges": []}
    return CanonicalCatalog.of({**raw, "resources": [*resources], **more})


def ends(edge: CatalogEdge) -> str:
    source, target = f"{edge.source_type}[{edge.source_title}]", edge.target_title
    return f"{source} {edge.relationship} {edge.target_type}[{target}]"


def test_equal_catalogs_in_any_order_have_equal_bytes() -> None:
    one = resource("File", "/a", tags=["web", "a"], parameters={"mode": "0644", "tag": ["x", "b"]})
    two = resource("Notify", "n", parameters={"before": ["File[/a]"]})
    edges = [{"source": "Class[main]", "target": "File[/a]"}] * 2
    found = catalog(one, two, edges=edges, classes=["web", "a"])
    again = {"tag": ["b", "x"], "mode": "0644"}
    other = resource("File", "/a", tags=["a", "web"], parameters=again)
    assert catalog(two, other, edges=edges[:1], classes=["a", "web"], version=7) == found
    assert found.digest == catalog(two, other, edges=edges, classes=["a", "web"]).digest
    assert catalog(one, two).digest != found.digest
    assert CanonicalCatalog.parse(found.to_bytes(), where="catalog") == found


def test_relationships_become_edges_between_resources_by_title() -> None:
    path = {"path": "/etc/web.conf", "before": ["Service[web]"], "subscribe": "Package[web]"}
    found = catalog(
        resource("File", "conf", aliases=["/etc/web.conf"], parameters=path),
        resource("Service", "web", parameters={"require": [["File[/etc/web.conf/]"]]}),
        resource("Package", "web", parameters={"notify": "Service[web]"}),
        resource("Notify", "elsewhere", virtual=True, parameters={"require": "File[nowhere]"}),
        edges=[{"source": "Class[main]", "target": "File[conf]"}],
    )
    assert [ends(edge) for edge in found.edges] == [
        "Class[main] contains File[conf]",
        "File[conf] before Service[web]",
        "File[conf] required-by Service[web]",
        "Package[web] subscription-of File[conf]",
        "Package[web] notifies Service[web]",
    ]
    assert found.resources[0].parameters["alias"] == ["/etc/web.conf"]
    with pytest.raises(InvalidInputError, match=r"Notify\[n\]: the catalog lacks require"):
        catalog(resource("Notify", "n", parameters={"require": "File[/gone]"}))


def test_a_secret_is_a_placeholder_at_any_depth() -> None:
    secret = {"__ptype": "Sensitive", "__pvalue": "CANARY"}
    call = {"__ptype": "Deferred", "name": "new", "arguments": ["CANARY", secret]}
    found = catalog(
        resource(
            "App",
            "a",
            sensitive_parameters=["password", "alias"],
            aliases=["CANARY"],
            parameters={
                "password": "CANARY",
                "alias": "CANARY",
                "nested": {"list": [secret, {"deep": secret}]},
                "late": call,
            },
        )
    )
    assert b"CANARY" not in found.to_bytes()
    assert found.resources[0].parameters == {
        "password": {"__ptype": "Sensitive"},
        "alias": {"__ptype": "Sensitive"},
        "nested": {"list": [{"__ptype": "Sensitive"}, {"deep": {"__ptype": "Sensitive"}}]},
        "late": {"__ptype": "Deferred"},
    }


def test_a_file_is_relative_to_its_release() -> None:
    (found,) = catalog(resource("Notify", "n", file=STORED, line=3)).resources
    assert (found.file, found.line) == ("web/manifests/init.pp", 3)


@pytest.mark.parametrize(
    "damage",
    [
        {"schema": 2},
        {"resources": [{"type": "File"}]},
        {"classes": [1]},
        {"edges": [{"source_type": "A", "relationship": "likes"}]},
    ],
)
def test_a_damaged_catalog_of_another_node_is_refused(damage: dict[str, Any]) -> None:
    sent = {**json.loads(catalog(resource("File", "/a")).to_bytes()), **damage}
    with pytest.raises(InvalidInputError):
        CanonicalCatalog.parse(json.dumps(sent).encode(), where="catalog")
    with pytest.raises(InvalidInputError, match="not a catalog of Puppet"):
        CanonicalCatalog.of({"resources": [{"title": "x"}]})


def test_only_a_digest_is_kept_as_the_mark_of_a_placeholder() -> None:
    secret = {"__ptype": "Sensitive", "mark": "0a" * 16, "__pvalue": "CANARY"}
    forged = {"__ptype": "Deferred", "mark": "CANARY"}
    found = catalog(
        resource("App", "a", parameters={"a": secret, "b": [secret, forged]}),
        resource("App", "b", parameters={"a": secret}, sensitive_parameters=["a"]),
    )
    marked = {"__ptype": "Sensitive", "mark": "0a" * 16}
    assert found.resources[0].parameters == {"a": marked, "b": [marked, {"__ptype": "Deferred"}]}
    assert found.resources[1].parameters == {"a": marked}
