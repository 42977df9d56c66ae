"""`localpuppet enc` and `instance-data`: the data of a run, without a run."""

import click

from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag


@command("enc", exits={1: "", 3: "", 69: ""})
@click.argument("node", required=False)
@click.pass_obj
def enc_command(wiring: NodeApp, node: str | None) -> None:
    """Print the ENC output for a node, as JSON.

    The output has the classes, parameters and environment of NODE (default: this node), in the
    format of Puppet's external node classifiers (ENC). The input is inputs/NODE.yaml if the root
    directory has a directory inputs/, else input.yaml.

    To use it as the ENC of a Puppet server, with one input for each node:
      node_terminus = exec
      external_nodes = /usr/local/bin/localpuppet --root /etc/puppet enc

    Examples:
      localpuppet enc
      localpuppet enc web01.example.com      as a Puppet server calls its ENC
    """
    from localpuppet.node.enc.input import find_input

    name = None
    if node is not None:
        from localpuppet.base.formats.names import NodeName

        name = NodeName.parse(node)
    source = find_input(wiring.settings.inputs, name) or str(wiring.settings.input)
    document = wiring.classifier.classify(source, node).document
    wiring.documents.remember()
    render.emit(document.to_yaml().rstrip("\n"))


@command(
    "instance-data",
    exits={0: "success, also if there is no data", 69: "the metadata service does not answer"},
)
@flag("--refresh", "Ask the metadata service again, not the copy of this boot.")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def instance_data_command(node: NodeApp, refresh: bool, as_json: bool) -> None:
    """Show which facts come from the cloud.

    The output names the facts, their source, and the reasons why others are missing. It has no
    values, because user data often contains secrets. The source is cloud-init if it ran, else the
    metadata service in localpuppet.yaml.

    Examples:
      localpuppet instance-data
      localpuppet instance-data --refresh      after the user data changed
    """
    from localpuppet.node.enc.instance_facts import facts_of

    instance = node.instance
    if refresh:
        instance.forget()
    data = instance.data
    facts = None if data is None else facts_of(data)
    if as_json:
        render.emit_json(
            {
                "schema": 1,
                "source": data.source if data else None,
                "instance_id": data.instance_id if data else None,
                "user_data_bytes": len(data.user_data) if data else None,
                "is_input": data.is_input if data else None,
                "facts": sorted(facts.facts) if facts else [],
                "left_out": dict(facts.left_out) if facts else {},
            }
        )
        return
    if data is None or facts is None:
        render.emit("none: cloud-init did not run here, and localpuppet.yaml names no service")
        return
    size = render.counted(len(data.user_data), "byte")
    render.emit(
        render.pairs(
            [
                ("Source", data.source),
                ("Instance", data.instance_id),
                ("User data", size + (", an input" if data.is_input else "")),
                ("Facts", ", ".join(sorted(facts.facts))),
            ]
        )
    )
    if facts.left_out:
        render.emit(render.table(("LEFT OUT", "WHY"), sorted(facts.left_out.items())))
