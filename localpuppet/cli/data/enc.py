"""`localpuppet enc`: the node document, computed afresh."""

import click

from localpuppet.cli import render
from localpuppet.errors import InvalidInputError
from localpuppet.wiring.node import NodeWiring


@click.command(
    "enc",
    short_help="Print what Puppet is told of a node, as JSON.",
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
    """Print what Puppet is told of NODE (default: this one), as JSON that is YAML.

    The input is inputs/NODE.yaml where the root has a directory inputs/, and input.yaml otherwise.
    """
    from localpuppet.wiring.run import RunWiring

    source = str(wiring.settings.input)
    if node is not None:
        from localpuppet.formats.names import NodeName

        name = NodeName.parse(node)
        if wiring.settings.inputs.is_dir():
            path = wiring.settings.inputs / f"{name}.yaml"
            if not path.exists():
                raise InvalidInputError(f"there is not an input for {name}", where=str(path))
            source = str(path)
    document = RunWiring(wiring).classifier().classify(source, node).document
    wiring.documents.remember()
    render.emit(document.to_yaml().rstrip("\n"))
