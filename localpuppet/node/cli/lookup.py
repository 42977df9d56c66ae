"""`localpuppet lookup`: a Hiera key as a run would look it up."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.formats.text import printable
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option, path_type

if TYPE_CHECKING:
    from localpuppet.base.formats.names import NodeName
    from localpuppet.node.enc.document import NodeDocument
    from localpuppet.node.releases.release import Release
    from localpuppet.node.runs.puppet_calls import FactOverrides

# Puppet makes `trusted` of these facts, so 'puppet lookup' overrides all of them or none.
TRUSTED = {"hostname", "domain", "fqdn", "clientcert"}


@command(
    "lookup",
    exits={
        0: "Hiera has a value",
        1: "Hiera has no value",
        3: "",
        69: "the inventory is unreachable",
    },
)
@click.argument("key")
@flag("--explain", "Show where Hiera searched, and what it found.")
@option(
    "--merge",
    "Merge the values of all levels this way.",
    type=click.Choice(["first", "unique", "hash", "deep"]),
)
@option("--type type_name TYPE", "Reject a value that is not of this Puppet type.")
@option(
    "--dir directory DIR",
    "Use this unreleased work tree instead of the release.",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
)
@option("--node name NODE", "Use the facts and the input of this node.")
@option(
    "--facts facts_file FILE",
    "Override facts with those in FILE (JSON, or YAML if its name ends with .yaml).",
    type=path_type(),
)
@option(
    "--node-document document_file FILE",
    "Use this output of 'enc' instead of the input's.",
    type=path_type(),
)
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def lookup_command(
    node: NodeApp,
    /,
    key: str,
    as_json: bool,
    **given: Any,  # noqa: ANN401
) -> int:
    """Look up a Hiera key as a run would.

    The lookup uses the hiera.yaml, facts and parameters of a run. It reads the release that the
    input names, which must be on this node, or the work tree of --dir.

    With --node, the facts come from the inventory entry of that node. If the root directory has a
    directory inputs/, the input is inputs/NODE.yaml. Values that eyaml decrypts are shown in clear
    text.

    Examples:
      localpuppet lookup ntp::servers
      localpuppet lookup ntp::servers --explain
      localpuppet lookup ntp::servers --dir .        in an unreleased work tree
      localpuppet lookup ntp::servers --node web01.example.com
      localpuppet lookup role --dir . --node web01.example.com --facts web01.json
      localpuppet lookup users --merge deep --type Hash
    """
    from localpuppet.base.formats.names import NodeName
    from localpuppet.node.runs.puppet_calls import LookupRequest, look_up

    request = LookupRequest(
        key=key,
        explain=given["explain"],
        merge=given["merge"] or "",
        type=given["type_name"] or "",
    )
    name = None if given["name"] is None else NodeName.parse(given["name"])
    release, document = _classify(node, name, given)
    facts = _collect_facts(node, name, given["facts_file"])
    result = look_up(request, release, document, facts=facts, puppet=node.puppet_caller)
    if as_json:
        render.emit_json(
            {
                "schema": 1,
                "key": key,
                "release": release.name,
                "found": result.found,
                "value": result.value,
                "explanation": result.explanation,
            }
        )
    elif request.explain:
        render.emit(printable(result.explanation).rstrip("\n"))
    elif result.found:
        text = result.value if isinstance(result.value, str) else json.dumps(result.value, indent=2)
        render.emit(printable(text))
    else:
        render.fail(f"{key}: there is no value ('localpuppet lookup {key} --explain' says where)")
    return 0 if result.found else 1


def _classify(
    node: NodeApp, name: "NodeName | None", given: Mapping[str, Any]
) -> "tuple[Release, NodeDocument]":
    """Return the release or work tree, and the node document."""
    from localpuppet.node.enc.input import find_input, node_document

    inputs, directory, document = node.settings.inputs, given["directory"], given["document_file"]
    if directory is None:
        source = find_input(inputs, name) or str(node.settings.input)
        classified = node.classifier.classify(source, name)
        node_data = classified.document if document is None else _document(node, document)
        return classified.release, node_data

    tree = node.mutable.work_tree(directory)
    if document is not None:
        return tree, _document(node, document)
    loaded = node.preparation().read_optional(find_input(inputs, name))
    return tree, node_document(loaded, tree.enc, answer=node.classifier.answer(name))


def _collect_facts(
    node: NodeApp, name: "NodeName | None", file: Path | None
) -> "FactOverrides | None":
    """Return the facts of a node, overridden by those of a file; `None` for this machine's."""
    from localpuppet.node.runs.puppet_calls import FactOverrides, read_values

    _, values = ({}, {}) if file is None else read_values(file)
    if name is None:
        some = TRUSTED & set(values)
        if some and some != TRUSTED:
            raise InvalidInputError(
                f"overrides {', '.join(sorted(some))} without {', '.join(sorted(TRUSTED - some))}",
                where=str(file),
                hint="write all four, or name the node: --node NAME",
            )
        return FactOverrides(name=None, values=values) if values else None
    facts = None
    if file is None or node.neighbours.exchange_resources:
        facts = node.neighbours.facts(name)
    if facts is None and not values:
        raise InvalidInputError(
            f"{name} is not in the inventory", hint="pass its facts: --facts FILE"
        )
    return FactOverrides(name=name, values={**(facts or {}), **values})


def _document(node: NodeApp, file: Path) -> "NodeDocument":
    from localpuppet.base.machine.files import read_user_file
    from localpuppet.node.enc.document import NodeDocument

    data = node.documents.parse(read_user_file(file), schema="enc_output", where=str(file))
    with errors_at(str(file), LocalpuppetError):
        return NodeDocument.from_dict(data)
