"""Compiles given nodes with a working copy, before it is a release: inputs, and facts of machines.

    web01.yaml + web01.json  ->  the catalog of web01.example.com, or why there is none

Owns: which name a node has, and that a node that does not compile stops no other. Refuses to know:
how Puppet is called (`releases.catalogs`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats import strict_yaml
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import read_user_file
from localpuppet.node.enc.classify import node_document
from localpuppet.node.enc.document import EncData
from localpuppet.node.enc.input import LoadedInput
from localpuppet.node.releases.catalogs import CatalogCompiler, NodeFacts
from localpuppet.node.releases.release import Release

MAX_FACTS = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledNode:
    """What became of a node.

    Attributes:
        input: Its input.
        node: Its name.
        resources: How many resources its catalog has.
        problem: Why it has no catalog; empty when it has one.
    """

    input: str
    node: str
    resources: int
    problem: str

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {
            "input": self.input,
            "node": self.node,
            "resources": self.resources,
            "problem": self.problem or None,
        }


def compile_nodes(
    release: Release,
    inputs: Sequence[LoadedInput],
    facts: Sequence[NodeFacts | None],
    *,
    compiler: CatalogCompiler,
    answer: Callable[[NodeName | None], EncData | None],
) -> tuple[CompiledNode, ...]:
    """Compile each input with each node's facts.

    Args:
        release: The working copy, with its modules.
        inputs: The inputs; the release that they name does not count.
        facts: Facts of machines; `None` for this one.
        compiler: Compiles.
        answer: Returns what the site's own ENC command says of a node; `None` where there is none.

    Raises:
        EncError: The site's ENC command failed.
        PuppetMissingError: There is no Puppet.
        StateError: Puppet cannot be started, or the disk refused.
    """
    found = []
    for loaded in inputs:
        for machine in facts:
            name = machine.name if machine else None
            count, problem = 0, ""
            try:
                document = node_document(loaded, release.enc, answer=answer(name))
                count = len(compiler.compile(release, document, facts=machine))
            except InvalidInputError as error:
                problem = str(error)
            found.append(
                CompiledNode(
                    input=loaded.name, node=name or "this node", resources=count, problem=problem
                )
            )
    return tuple(found)


def read_facts(file: Path) -> NodeFacts:
    """Return the facts of a node in a file; see `read_values`.

    Raises:
        InvalidInputError: The file holds something else, or does not say which node's they are.
    """
    raw, values = read_values(file)
    try:
        name = NodeName.parse(str(_name(raw, values) or file.stem).lower())
    except InvalidInputError as error:
        raise error.at(str(file)) from error
    return NodeFacts(name=name, values=values)


def read_values(file: Path) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return a file of facts, what `facter --json` or `puppet facts` printed, and the facts in it.

    Args:
        file: JSON, or YAML in a file `.yaml`: the facts, or `{"name": NODE, "values": facts}`.

    Raises:
        InvalidInputError: The file holds something else.
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
