"""Asks Hiera for a key as a run of this node would see it.

Owns: the call of `puppet lookup`, with the release's modulepath and `hiera.yaml`, this node's facts
and the node document through the ENC; what its answer means. Refuses to know: how it is shown.
"""

from dataclasses import dataclass
from typing import Any

from localpuppet.enc.document import NodeDocument
from localpuppet.errors import InvalidInputError
from localpuppet.formats.strict_json import loads
from localpuppet.formats.text import last_words
from localpuppet.puppet.command import error_lines, with_names
from localpuppet.releases.catalogs import CatalogCompiler
from localpuppet.releases.release import Release


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


def look_up(
    key: str,
    release: Release,
    document: NodeDocument,
    *,
    explain: bool,
    compiler: CatalogCompiler,
) -> Found:
    """Return what Hiera has for a key.

    Args:
        key: The key, `profile::base::packages` or `hosts.web01`.
        release: The release, on this node.
        document: The node document; its classes are compiled, as `lookup` in a run sees them.
        explain: Ask for the way to the value.
        compiler: Calls Puppet.

    Raises:
        InvalidInputError: Not a key, data that cannot be read, a catalog that does not compile.
        PuppetMissingError: There is no Puppet.
        StateError: Puppet cannot be started, or the disk refused.
    """
    if not key.strip() or key.startswith("-"):
        raise InvalidInputError(f"{key[:60]!r} is not a key of Hiera", where="KEY")
    how = ("--explain",) if explain else ("--render-as", "json")
    output = compiler.call(
        ("lookup", key, "--compile", *how), release, document, script=compiler.lookup_script
    )
    text = output.stdout.decode("utf-8", "replace")
    # Puppet exits 1 for both: there is no value, or something is wrong.
    problems = "\n".join(error_lines(output.stderr)) if output.ended.code == 1 else ""
    if output.ended.code not in (0, 1) or problems:
        named = with_names(problems.removeprefix("Error: Could not run: "), release.directories)
        said = last_words(named.encode(), most=600) or f"Puppet exited {output.ended.code}"
        raise InvalidInputError(f"cannot be looked up: {said}", where=f"{release.app}: {key}")
    if explain:
        return Found(found="did not find a value" not in text, value=None, explanation=text)
    if output.ended.code == 1:
        return Found(found=False, value=None, explanation="")
    try:
        # What a manifest prints while it compiles stands before the answer, which is one line.
        return Found(found=True, value=loads(_last_line(text)), explanation="")
    except ValueError as error:
        raise InvalidInputError("Puppet printed no value", where=f"{release.app}: {key}") from error


def _last_line(text: str) -> str:
    return text.rstrip("\n").rpartition("\n")[2]
