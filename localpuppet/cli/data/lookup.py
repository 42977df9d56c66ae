"""`localpuppet lookup`: what Hiera has for a key, as a run would see it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localpuppet.cli import render
from localpuppet.errors import LocalpuppetError
from localpuppet.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.enc.document import NodeDocument


@click.command(
    "lookup",
    short_help="Show what Hiera has for a key, as a run would see it.",
    epilog="""\b
Examples:
  localpuppet lookup ntp::servers
  localpuppet lookup ntp::servers --explain
  localpuppet enc web01.example.com > doc.json
  localpuppet lookup role --node-document doc.json

What is decrypted (eyaml) is shown in clear. Exit codes: 0 found, 1 there is no value, 2 the key,
the data or the catalog is refused.
""",
)
@click.argument("key")
@click.option("--explain", is_flag=True, help="Show where Hiera looked and what it took.")
@click.option(
    "--node-document",
    "document_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Use this node document (of 'enc') in place of the input's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def lookup_command(
    node: NodeWiring, key: str, explain: bool, document_file: Path | None, as_json: bool
) -> int:
    """Show what Hiera has for KEY: same release, hiera.yaml, facts and node document as a run.

    The release is the one that the input names, on this node. Nothing is applied.
    """
    from localpuppet.releases.lookup import look_up
    from localpuppet.wiring.run import RunWiring

    wiring = RunWiring(node)
    classified = wiring.classifier().classify(str(node.settings.input), None)
    document = classified.document if document_file is None else _document(node, document_file)
    observer = render.observer(quiet=True, title="")
    found = look_up(
        key, classified.release, document, explain=explain, compiler=wiring.catalog_compiler()
    )
    observer.close()
    if as_json:
        render.emit_json(
            {
                "schema": 1,
                "key": key,
                "release": classified.release.app,
                "found": found.found,
                "value": found.value,
                "explanation": found.explanation,
            }
        )
    elif explain:
        render.emit(render.user_text(found.explanation).rstrip("\n"))
    elif found.found:
        text = found.value if isinstance(found.value, str) else json.dumps(found.value, indent=2)
        render.emit(render.user_text(text))
    else:
        render.fail(f"{key}: there is no value ('localpuppet lookup {key} --explain' says where)")
    return 0 if found.found else 1


def _document(node: NodeWiring, file: Path) -> "NodeDocument":
    from localpuppet.enc.document import NodeDocument
    from localpuppet.machine.files import read_user_file

    data = node.documents.parse(read_user_file(file), schema="enc_output", where=str(file))
    try:
        return NodeDocument.from_dict(data)
    except LocalpuppetError as error:
        raise error.at(str(file)) from error
