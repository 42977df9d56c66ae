"""`localpuppet instance-data`: which facts come from the cloud, and which do not."""

import click

from localpuppet.node.cli import render
from localpuppet.node.wiring.inputs import NodeInputs
from localpuppet.node.wiring.node import NodeWiring


@click.command(
    "instance-data",
    short_help="Show which facts the cloud's instance data gives.",
    epilog="""\b
Examples:
  localpuppet instance-data
  localpuppet instance-data --ask-again    after the user data was changed

Values are not shown: user data often holds secrets. Exit codes: 0 (also without data),
2 a file is refused, 69 the metadata service does not answer.
""",
)
@click.option("--ask-again", is_flag=True, help="Forget what the service answered in this boot.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def instance_data_command(node: NodeWiring, ask_again: bool, as_json: bool) -> None:
    """Show which facts a run gets from the cloud, their sources, and why others are missing.

    The source is cloud-init if it ran, else the metadata service in localpuppet.yaml.
    """
    from localpuppet.node.enc.instance.facts import facts_of

    instance = NodeInputs(node).instance
    if ask_again:
        instance.forget()
    data = instance.data
    found = None if data is None else facts_of(data)
    if as_json:
        render.emit_json(
            {
                "schema": 1,
                "source": data.source if data else None,
                "instance_id": data.instance_id if data else None,
                "user_data_bytes": len(data.user_data) if data else None,
                "is_input": data.is_input if data else None,
                "facts": sorted(found.facts) if found else [],
                "left_out": dict(found.left_out) if found else {},
            }
        )
        return
    if data is None or found is None:
        render.emit("none: cloud-init did not run here, and localpuppet.yaml names no service")
        return
    size = render.counted(len(data.user_data), "byte")
    render.emit(
        render.pairs(
            [
                ("Source", data.source),
                ("Instance", data.instance_id),
                ("User data", size + (", an input" if data.is_input else "")),
                ("Facts", ", ".join(sorted(found.facts))),
            ]
        )
    )
    if found.left_out:
        render.emit(render.table(("LEFT OUT", "WHY"), sorted(found.left_out.items())))
