"""`localpuppet plan`: show the order in which the nodes of a site run."""

from typing import TYPE_CHECKING, Any

import click

from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, option
from localpuppet.rollout.cli.site_options import read_plan, site_options, without_collector

if TYPE_CHECKING:
    from localpuppet.rollout.plan import Plan


@command(
    "plan",
    exits={
        2: "the site is invalid or has no order, or no node is selected",
        69: "the inventory is unreachable, or Graphviz is missing",
    },
)
@site_options
@option("--json form", "Print the plan as JSON.", flag_value="json")
@option("--svg form", "Print a picture (requires Graphviz).", flag_value="svg")
@option("--dot form", "Print DOT text for Graphviz.", flag_value="dot")
@option("--text form", "Print the format of 'mco choria plan', as in a pipe.", flag_value="text")
@click.pass_obj
def plan_command(node: NodeApp, /, form: str | None, **given: Any) -> None:  # noqa: ANN401
    """Show in which order the nodes of a site run.

    The plan has groups; the nodes of a group can run at the same time. A node that consumes
    something is in a later group than all nodes that produce it. The command runs nothing.

    Without --site, the order comes from the inventory: from the components that catalogs declare,
    and from what nodes collect from, query about and kick each other.

    A site file:
      applications:
        shop:
          database: {node: db01.example.com, produces: [sql/shop]}
          web: {node: web01.example.com, consumes: [sql/shop]}

    Examples:
      localpuppet plan
      localpuppet plan --role web --role haproxy
      localpuppet plan --site site.yaml
      localpuppet plan --site environment.json --instance 'Lamp[app1]'
      localpuppet plan --site site.yaml --nodes db01.example.com,lb01.example.com
      localpuppet plan --site site.yaml --svg > plan.svg
      localpuppet plan --site site.yaml --json | jq '.groups[].runs[].node'
    """
    with without_collector():
        show(read_plan(node, given), form)


def show(plan: "Plan", form: str | None) -> None:
    """Print a plan in a form; `None` chooses one for the terminal or pipe."""
    from localpuppet.rollout.cli import plan_text

    if form == "json":
        for line in plan_text.as_json(plan):
            render.emit(line)
        return
    if form in ("svg", "dot"):
        from localpuppet.rollout.diagram import dot_text, plan_diagram
        from localpuppet.rollout.svg import draw_svg

        draw = draw_svg if form == "svg" else dot_text
        render.emit(draw(plan_diagram(plan)).removesuffix("\n"))
        return
    if form is None and render.columns() is not None:
        render.emit(plan_text.for_people(plan))
        return
    render.emit(plan_text.as_choria(plan).removesuffix("\n"))
    if repeated := plan_text.repeated(plan):
        render.say(f"# {repeated}", err=True)
