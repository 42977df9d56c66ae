"""The display of changes that a release would make."""

import click

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.requests.request_client import CatalogComparison
from localpuppet.node.releases.comparison import CatalogChanges
from localpuppet.rollout.cli.rollout_run import SHOWN, lines


def test_changes_are_shown_by_groups_of_nodes() -> None:
    web = CatalogChanges(
        added=tuple(f"File[/{number}]" for number in range(SHOWN)),
        removed=("Notify[x]",),
        changed={"Service[web]": ("enable", "ensure")},
        left_out=7,
    )
    told = {
        NodeName("web01.example.com"): CatalogComparison(changes=web),
        NodeName("db01.example.com"): CatalogComparison(changes=CatalogChanges()),
        NodeName("lb01.example.com"): CatalogComparison(problem="did not\x1b answer"),
        NodeName("web02.example.com"): CatalogComparison(changes=web),
    }
    text = click.unstyle("\n".join(lines(told)))
    assert text.startswith(
        "NODE               ADDED  REMOVED  CHANGED\n"
        "web01.example.com  20     1        1\n"
        "db01.example.com   0      0        0\n"
        "web02.example.com  20     1        1\n"
        "\n"
        "web01.example.com, web02.example.com\n"
        "  - Notify[x]\n"
        "  ~ Service[web]: enable, ensure\n"
        "  + File[/0]\n"
    )
    assert text.endswith(
        "  + File[/17]\n"
        "  and 9 more; --json has all\n"
        "\n"
        "db01.example.com\n"
        "  nothing changes\n"
        "lb01.example.com: not known: did not\\x1b answer"
    )
