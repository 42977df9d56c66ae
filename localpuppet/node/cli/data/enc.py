"""`localpuppet enc`: the node document, computed afresh."""

import click

from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command


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
