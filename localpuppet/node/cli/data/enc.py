"""`localpuppet enc`: the node document, computed afresh."""

import click

from localpuppet.node.cli import render
from localpuppet.node.wiring.node import NodeWiring


@click.command(
    "enc",
    short_help="Print the node document of a node, as JSON.",
    epilog="""\b
As the ENC of a Puppet server:
  node_terminus = exec
  external_nodes = /usr/local/bin/localpuppet --root /etc/puppet enc
with an input per node in inputs/NAME.yaml.
""",
)
@click.argument("node", required=False)
@click.pass_obj
def enc_command(wiring: NodeWiring, node: str | None) -> None:
    """Print the node document of NODE (default: this node), as JSON that is also YAML.

    The input is inputs/NODE.yaml if the root has a directory inputs/, else input.yaml.
    """
    from localpuppet.node.enc.input import find_input
    from localpuppet.node.wiring.compiling import classifier

    name = None
    if node is not None:
        from localpuppet.base.formats.names import NodeName

        name = NodeName.parse(node)
    source = find_input(wiring.settings.inputs, name) or str(wiring.settings.input)
    document = classifier(wiring).classify(source, node).document
    wiring.documents.remember()
    render.emit(document.to_yaml().rstrip("\n"))
