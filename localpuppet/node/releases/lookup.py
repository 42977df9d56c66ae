"""Asks Hiera for a key as a run of this node would see it.

Owns: the call of `puppet lookup`, with the release's modulepath and `hiera.yaml`, a node's facts
and the node document through the ENC; what its answer means. Refuses to know: how it is shown.
"""

from dataclasses import dataclass
from typing import Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import last_words
from localpuppet.node.enc.document import NodeDocument
from localpuppet.node.puppet.command import error_lines, with_names
from localpuppet.node.releases.catalogs import CatalogCompiler, NodeFacts
from localpuppet.node.releases.release import Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What Hiera has for a key.

    Attributes:
        found: Whether there is a value.
        value: It; with an explanation, `None`.
        explanation: Where Hiera looked and what it took, in Puppet's words; empty if not asked for.
    """

    found: bool
    value: Any
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupRequest:
    """A key, and how it is looked up.

    Attributes:
        key: The key, `profile::base::packages` or `hosts.web01`.
        explain: Whether to ask for the way to the value.
        merge: How values of several levels become one; empty for what the data say.
        type: Puppet's type that the value must have; empty for any.
    """

    key: str
    explain: bool = False
    merge: str = ""
    type: str = ""

    def words(self) -> list[str]:
        """Return the call of `puppet lookup`.

        Raises:
            InvalidInputError: It is not a key.
        """
        if not self.key.strip() or self.key.startswith("-"):
            raise InvalidInputError(f"{self.key[:60]!r} is not a key of Hiera", where="KEY")
        given = {"--merge": self.merge, "--type": self.type}
        how = ["--explain"] if self.explain else ["--render-as", "json"]
        how += [f"{option}={value}" for option, value in given.items() if value]
        return ["lookup", self.key, "--compile", *how]


def look_up(
    request: LookupRequest,
    release: Release,
    document: NodeDocument,
    *,
    facts: NodeFacts | None,
    compiler: CatalogCompiler,
) -> Found:
    """Return what Hiera has for a key.

    Args:
        request: The key, and how it is looked up.
        release: The release, on this node.
        document: The node document; its classes are compiled, as `lookup` in a run sees them.
        facts: Of another machine, or over this node's; `None` for this node's.
        compiler: Calls Puppet.

    Raises:
        InvalidInputError: Not a key, data that cannot be read, a value of another type, a catalog
            that does not compile.
        PuppetMissingError: There is no Puppet.
        StateError: Puppet cannot be started, or the disk refused.
    """
    words, where = request.words(), f"{release.app}: {request.key}"
    script = compiler.lookup_script
    output = compiler.call(words, release, document, script=script, facts=facts)
    text = output.stdout.decode("utf-8", "replace")
    # Puppet exits 1 for both: there is no value, or something is wrong.
    problems = "\n".join(error_lines(output.stderr)) if output.ended.code == 1 else ""
    if output.ended.code not in (0, 1) or problems:
        named = with_names(problems.removeprefix("Error: Could not run: "), release.directories)
        said = last_words(named.encode(), most=600) or f"Puppet exited {output.ended.code}"
        raise InvalidInputError(f"cannot be looked up: {said}", where=where)
    if request.explain:
        return Found(found="did not find a value" not in text, value=None, explanation=text)
    if output.ended.code == 1:
        return Found(found=False, value=None, explanation="")
    try:
        # What a manifest prints while it compiles stands before the answer, which is one line.
        return Found(found=True, value=loads(_last_line(text)), explanation="")
    except ValueError as error:
        raise InvalidInputError("Puppet printed no value", where=where) from error


def _last_line(text: str) -> str:
    return text.rstrip("\n").rpartition("\n")[2]
