"""`localpuppet enc`: the node document, computed afresh."""

import click

from localpuppet.cli import render
from localpuppet.errors import InvalidInputError
from localpuppet.wiring.node import Parts


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
def enc_command(parts: Parts, node: str | None) -> None:
    """Print what Puppet is told of NODE (default: this one), as JSON that is YAML.

    The input is inputs/NODE.yaml where the root has a directory inputs/, and input.yaml otherwise.
    """
    from localpuppet.wiring.classify import classify

    source = str(parts.settings.input)
    if node is not None:
        from localpuppet.formats.names import NodeName

        name = NodeName.parse(node)
        if parts.settings.inputs.is_dir():
            path = parts.settings.inputs / f"{name}.yaml"
            if not path.exists():
                raise InvalidInputError(f"there is no input for {name}", where=str(path))
            source = str(path)
    _, _, document = classify(parts, source, node)
    parts.documents.remember()
    render.emit(document.to_yaml().rstrip("\n"))
