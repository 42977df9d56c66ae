"""Compiles catalogs with the facts of this machine or of a file, and applies nothing.

`release diff --catalog`, `release check --compile` and `rollout plan --catalogs` compile so.
"""

from collections.abc import Mapping

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import joined, without_middle
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.node.enc.document import NodeDocument
from localpuppet.node.preview.ports import CompileEngine, CompileRequest
from localpuppet.node.puppet.catalog import CanonicalCatalog
from localpuppet.node.puppet.command import error_lines
from localpuppet.node.puppet.facts import parse_facts
from localpuppet.node.releases.calling import FactOverrides, PuppetCaller
from localpuppet.node.releases.release import Release

# Characters of Puppet's error that a message has.
MAX_ERROR = 400


class CompilationError(InvalidInputError):
    """Puppet cannot compile the catalog; the message quotes Puppet and may hold values."""


class NodeCatalogs(Value):
    """Compiles catalogs of nodes.

    Attributes:
        puppet: Calls Puppet for the facts of this machine, custom ones of the release included.
        engine: Compiles.
    """

    puppet: PuppetCaller
    engine: CompileEngine

    def compile(
        self, release: Release, document: NodeDocument, facts: FactOverrides | None = None
    ) -> CanonicalCatalog:
        """Return the catalog of a node.

        Args:
            release: The release.
            document: The node document.
            facts: Facts of another machine; `None` for this node's.

        Raises:
            CompilationError: The catalog does not compile.
            InvalidInputError: Puppet reached the timeout, or cannot collect facts.
            PuppetMissingError: Puppet is not installed.
            StateError: Puppet cannot be started.
        """
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
