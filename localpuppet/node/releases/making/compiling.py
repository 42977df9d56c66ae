"""Compiles the catalogs of given nodes with a working copy, from inputs and facts of machines.

    web01.yaml + web01.json  ->  the catalog of web01.example.com, or the reason of a failure

A node that does not compile does not stop the others.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats import strict_yaml
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.values import Json, field_values
from localpuppet.base.machine.files import read_user_file
from localpuppet.base.value import Value
from localpuppet.node.enc.classify import node_document
from localpuppet.node.enc.document import EncData, NodeDocument
from localpuppet.node.enc.input import LoadedInput
from localpuppet.node.releases.calling import FactOverrides
from localpuppet.node.releases.release import Release

MAX_FACTS = 16 * 1024 * 1024


class CompiledNode(Value):
    """The result for one node.

    Attributes:
        input: The node's input.
        node: The node's name.
        resources: How many resources its catalog has.
        problem: Why it has no catalog, or empty.
    """

    input: str
    node: str
    resources: int
    problem: str

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {**field_values(self), "problem": self.problem or None}


def compile_nodes(
    release: Release,
    inputs: Sequence[LoadedInput],
    facts: Sequence[FactOverrides | None],
    *,
    compile_catalog: Callable[[Release, NodeDocument, FactOverrides | None], int],
    answer: Callable[[NodeName | None], EncData | None],
) -> tuple[CompiledNode, ...]:
    """Compile each input with each node's facts.

    Args:
        release: The working copy, with its modules.
        inputs: The inputs; the releases that they name are ignored.
        facts: Facts of machines; `None` for this one.
        compile_catalog: Compiles, and returns the number of resources.
        answer: Returns the answer of the site's ENC command for a node; `None` without a command.

    Raises:
        EncError: The site's ENC command failed.
        PuppetMissingError: Puppet is not installed.
        StateError: Puppet cannot be started.
    """
    compiled = []
    for loaded in inputs:
        for machine in facts:
            name = machine.name if machine else None
            count, problem = 0, ""
            try:
                document = node_document(loaded, release.enc, answer=answer(name))
                count = compile_catalog(release, document, machine)
            except InvalidInputError as error:
                problem = str(error)
            compiled.append(
                CompiledNode(
                    input=loaded.name, node=name or "this node", resources=count, problem=problem
                )
            )
    return tuple(compiled)


def read_facts(file: Path) -> FactOverrides:
    """Return the facts of a node in a file; see `read_values`.

    Raises:
        InvalidInputError: The file has no facts, or does not name their node.
    """
    raw, values = read_values(file)
    with errors_at(str(file)):
        name = NodeName.parse(str(_name(raw, values) or file.stem).lower())
    return FactOverrides(name=name, values=values)


def read_values(file: Path) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return a facts file, as `facter --json` or `puppet facts` prints it, and its facts.

    Args:
        file: JSON, or YAML in a file `.yaml`: the facts, or `{"name": NODE, "values": facts}`.

    Raises:
        InvalidInputError: The file has no facts.
    """
    data = read_user_file(file, limit=MAX_FACTS)
    try:
        is_yaml = file.suffix in (".yaml", ".yml")
        raw = strict_yaml.parse(data, where=str(file)) if is_yaml else loads(data)
    except ValueError as error:
        raise InvalidInputError(
            "is not JSON", where=str(file), hint="facter --json, or puppet facts"
        ) from error
    if not isinstance(raw, dict):
        raise InvalidInputError("is not a mapping of facts", where=str(file))
    values = raw.get("values", raw)
    if not isinstance(values, dict):
        raise InvalidInputError("values is not a mapping of facts", where=str(file))
    return raw, values


def _name(raw: Mapping[str, Any], values: Mapping[str, Any]) -> object:
    networking = values.get("networking")
    fqdn = networking.get("fqdn") if isinstance(networking, dict) else None
    return (raw.get("name") if "values" in raw else None) or fqdn or values.get("fqdn")
