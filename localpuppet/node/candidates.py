"""What Puppet would do on this node with another release: two catalogs, compared.

`release diff --catalog`, `release check --compile` and `rollout plan --release` compile so.

Nothing is applied, and the input and its assignment stay. Results and errors hold no values.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.text import joined, without_middle
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.flock import Flock
from localpuppet.base.value import Value
from localpuppet.node.enc.document import EncData, NodeDocument
from localpuppet.node.enc.input import InputReader, node_document
from localpuppet.node.preview.compile_request import CompileEngine, CompileRequest
from localpuppet.node.preview.difference import (
    ADDED,
    CHANGED,
    REMOVED,
    CatalogDifference,
    ParameterChange,
    class_title,
    difference,
)
from localpuppet.node.puppet.catalog import TYPE_KEY, CanonicalCatalog
from localpuppet.node.puppet.command_line import error_lines
from localpuppet.node.puppet.report import parse_facts
from localpuppet.node.releases.comparison import CatalogChanges, NameDifference
from localpuppet.node.releases.release import Release
from localpuppet.node.runs.interface import only_in_other
from localpuppet.node.runs.interface_reader import InterfaceReader
from localpuppet.node.runs.preparing import ReleaseProvider
from localpuppet.node.runs.puppet_calls import FactOverrides, PuppetCaller

_SIGNS = {ADDED: "+", REMOVED: "-"}


def named_difference(difference: CatalogDifference) -> NameDifference:
    """Return references of resources, with a line for each that changes: `mode: 0644 → 0600`."""
    parts = {
        change.reference: [*map(_shown, change.parameters)]
        for change in difference.resources
        if change.action == CHANGED
    }
    for relation in difference.relationships:
        part = f"{_SIGNS[relation.action]}{relation.relationship} {relation.target}"
        parts.setdefault(relation.source, []).append(part)
    return NameDifference(
        added=_references(difference, added=True),
        removed=_references(difference, added=False),
        changed={reference: "; ".join(parts[reference]) for reference in sorted(parts)},
    )


def brief_changes(difference: CatalogDifference) -> CatalogChanges:
    """Return references of resources and names of parameters and relationships, without values."""
    names: dict[str, set[str]] = {
        change.reference: {parameter.name for parameter in change.parameters}
        for change in difference.resources
        if change.action == CHANGED
    }
    for relation in difference.relationships:
        names.setdefault(relation.source, set()).add(relation.relationship)
    changed: Mapping[str, tuple[str, ...]] = {
        reference: tuple(sorted(names[reference])) for reference in sorted(names)
    }
    return CatalogChanges(
        added=_references(difference, added=True),
        removed=_references(difference, added=False),
        changed=changed,
    )


def _references(difference: CatalogDifference, *, added: bool) -> tuple[str, ...]:
    classes = difference.classes_added if added else difference.classes_removed
    action = ADDED if added else REMOVED
    return tuple(
        sorted(
            [
                *(f"Class[{class_title(name)}]" for name in classes),
                *(change.reference for change in difference.resources if change.action == action),
            ]
        )
    )


def _shown(change: ParameterChange) -> str:
    if change.before is None:
        return f"+{change.name}={_text(change.after)}"
    if change.after is None:
        return f"-{change.name}={_text(change.before)}"
    return f"{change.name}: {_text(change.before)} → {_text(change.after)}"


def _text(value: Json) -> str:
    if isinstance(value, dict) and isinstance(kind := value.get(TYPE_KEY), str):
        return f"({kind.lower()})"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


# Characters of Puppet's error that a message has.
MAX_ERROR = 400


class CompilationError(InvalidInputError):
    """Puppet cannot compile the catalog; the message quotes Puppet and may hold values."""


class NodeCatalogs(Value):
    puppet: PuppetCaller
    engine: CompileEngine

    def compile(
        self, release: Release, document: NodeDocument, facts: FactOverrides | None = None
    ) -> CanonicalCatalog:
        """Return the catalog of a node, with its own facts or those of another machine."""
        name = (facts and facts.name) or NodeName(self.puppet.installed().settings["certname"])
        values = facts.values if facts else self._facts(name, release, document)
        request = CompileRequest(
            node=name,
            facts=values,
            parameters=document.parameters,
            classes=document.classes,
            environment=document.environment,
        )
        (result,) = self.engine.compile(release, [request])
        if result.catalog is not None:
            return result.catalog
        where = f"{release.name}: {name}" if facts else release.name
        message = result.failure.message if result.failure else "Puppet gives no reason"
        problem = without_middle(joined(message), most=MAX_ERROR)
        raise CompilationError(f"the catalog does not compile: {problem}", where=where)

    def _facts(
        self, name: NodeName, release: Release, document: NodeDocument
    ) -> Mapping[str, Json]:
        output = self.puppet.call(("facts", "find", name, "--render-as", "json"), release, document)
        try:
            if output.ended.code == 0:
                text = output.stdout.decode("utf-8", "replace")
                return parse_facts(text[text.index("{") :].encode(), where="facts")
            problem = next(iter(error_lines(output.stderr)), f"Puppet exited {output.ended.code}")
        except ValueError as error:
            problem = str(error)
        raise InvalidInputError(
            f"Puppet returned no facts: {without_middle(joined(problem), most=MAX_ERROR)}",
            where=release.name,
        )


_WHY = "on the node 'localpuppet release diff BEFORE AFTER --catalog INPUT' says why"


class Candidate(Value):
    """Compares releases on this node; `answer` is that of the site's ENC, if it has one."""

    own: Path
    inputs: InputReader
    releases: ReleaseProvider
    reader: InterfaceReader
    catalogs: NodeCatalogs
    answer: Callable[[], EncData | None]
    lock_store: Callable[[], Flock]

    def changes(self, release: ReleasePath) -> CatalogChanges:
        """Return the differences between the catalog of the node's release and that of another."""
        with self.lock_store():
            read = self.inputs.read(str(self.own))
            app = read.input.app
            if app.source != release.source:
                raise InvalidInputError(
                    f"this node runs {app}, and {release} comes from another source",
                    where="release",
                )
            pair = [self.releases.provide(app), self.releases.provide(release)]
            interfaces = [self.reader.interface_of(item) for item in pair]
            compiled = []
            for side, own, other in zip(pair, interfaces, reversed(interfaces), strict=True):
                document = node_document(read, side.enc, answer=self.answer())
                document, _ = only_in_other(document, own, other)
                try:
                    compiled.append(self.catalogs.compile(side, document))
                except CompilationError as error:
                    raise InvalidInputError(
                        "the catalog does not compile", where=side.name, hint=_WHY
                    ) from error
            return brief_changes(difference(*compiled))
