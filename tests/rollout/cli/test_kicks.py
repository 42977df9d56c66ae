"""`localpuppet kicks`: what it prints, and how it ends."""

from localpuppet.fleet.bus.bus_limits import MAX_KICKS
from localpuppet.fleet.edges.links import MAX_QUESTIONS
from localpuppet.fleet.inventory.entry import CatalogQuery
from tests.rigs.fleet import Fleet


def test_the_cycle_is_named_and_check_finds_it(fleet: Fleet) -> None:
    web, lb = fleet.add("web", "lb")
    asked = CatalogQuery(text='servers_with_role("web")', digest="0")
    web.publish_entry("web", kicks=('role="haproxy"',))
    lb.publish_entry("haproxy", queries=(asked,))
    fine = web.run("kicks", "--check")
    assert (fine.code, fine.err) == (0, "")
    assert fine.out.splitlines() == [
        "CHANGES  RUNS THEN  BECAUSE IT",
        "web      haproxy    is kicked, asks about it",
    ]

    lb.publish_entry("haproxy", queries=(asked,), kicks=('role="web"',))
    for words, code in (([], 0), (["--check"], 1), (["--check", "--by", "query"], 0)):
        assert web.run("kicks", *words).code == code
    assert "cycle: haproxy -> web -> haproxy" in web.run("kicks").out
    found = web.run("kicks", "--json", "--check")
    assert (found.code, found.json["cycles"]) == (
        1,
        [
            {
                "path": ["haproxy", "web", "haproxy"],
                "by": [["kick"], ["kick", "query"]],
                "settles": False,
            }
        ],
    )
    assert web.run("kicks", "--svg").out.startswith("<svg ")
    assert web.run("kicks", "--dot").out.startswith("digraph {\n")


def test_no_links_and_an_unreachable_bus_are_different_answers(fleet: Fleet) -> None:
    (web,) = fleet.add("web")
    assert (
        web.run("kicks").out == "no node kicks, queries, collects from or triggers another node\n"
    )
    web.node.settings(
        node=str(web.name),
        bus="nats",
        buses={"nats": {"servers": ["nats://127.0.0.1:1"]}, "timeout": 1},
    )
    done = web.run("kicks", "--check")
    assert (done.code, done.out) == (69, "")


def test_an_incomplete_check_does_not_report_that_there_is_no_cycle(
    fleet: Fleet,
) -> None:
    """More queries than a single evaluation takes; the kicks of a real fleet may have as many."""
    nodes = fleet.add(*(f"web{number}" for number in range(MAX_QUESTIONS // MAX_KICKS + 1)))
    for number, node in enumerate(nodes):
        kicks = (f'role="{number} {kick}"' for kick in range(MAX_KICKS))
        node.publish_entry("web", kicks=tuple(kicks))
    shown = nodes[0].run("kicks")
    left = len(nodes) * MAX_KICKS - MAX_QUESTIONS
    said = f"{left} kicks and queries took too long to evaluate"
    assert (shown.code, f"# {said}: there may be more" in shown.err) == (0, True)
    checked = nodes[0].run("kicks", "--check")
    assert (checked.code, f"{said}: there may be a cycle" in checked.err) == (69, True)
