"""Looks up a Hiera key as a run of this node would, with `puppet lookup`."""

from typing import Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import last_words
from localpuppet.base.value import Value
from localpuppet.node.enc.document import NodeDocument
from localpuppet.node.puppet.command import error_lines, with_names
from localpuppet.node.releases.calling import FactOverrides, PuppetCaller
from localpuppet.node.releases.release import Release


class LookupResult(Value):
    """The result of a lookup.

    Attributes:
        found: Whether the key has a value.
        value: The value; `None` with an explanation.
        explanation: Where Hiera looked and what it took, in Puppet's words; empty unless requested.
    """

    found: bool
    value: Any
    explanation: str


class LookupRequest(Value):
    """A key, and how it is looked up.

    Attributes:
        key: The key, `profile::base::packages` or `hosts.web01`.
        explain: Whether to return Hiera's explanation.
        merge: The merge strategy; empty for the one in the data.
        type: The Puppet type of the value; empty for any.
    """

    key: str
    explain: bool = False
    merge: str = ""
    type: str = ""

    def words(self) -> list[str]:
        """Return the arguments of `puppet lookup`.

        Raises:
            InvalidInputError: The text is not a key.
        """
        if not self.key.strip() or self.key.startswith("-"):
            raise InvalidInputError(f"{self.key[:60]!r} is not a Hiera key", where="KEY")
        given = {"--merge": self.merge, "--type": self.type}
        how = ["--explain"] if self.explain else ["--render-as", "json"]
        how += [f"{option}={value}" for option, value in given.items() if value]
        return ["lookup", self.key, "--compile", *how]


def look_up(
    request: LookupRequest,
    release: Release,
    document: NodeDocument,
    *,
    facts: FactOverrides | None,
    puppet: PuppetCaller,
) -> LookupResult:
    """Look up a key in Hiera.

    Args:
        request: The key, and how it is looked up.
        release: The release, on this node.
        document: The node document; its classes are compiled, as `lookup` in a run sees them.
        facts: Facts of another machine, or facts that override this node's; `None` for this node's.
        puppet: Calls Puppet.

    Raises:
        InvalidInputError: The key or the data are invalid, the value has another type, or the
            catalog does not compile.
        PuppetMissingError: Puppet is not installed.
        StateError: Puppet cannot be started.
    """
    words, where = request.words(), f"{release.name}: {request.key}"
    script = puppet.lookup_script
    output = puppet.call(words, release, document, script=script, facts=facts)
    text = output.stdout.decode("utf-8", "replace")
    # Puppet exits 1 for both: there is no value, or something is wrong.
    problems = "\n".join(error_lines(output.stderr)) if output.ended.code == 1 else ""
    if output.ended.code not in (0, 1) or problems:
        named = with_names(problems.removeprefix("Error: Could not run: "), release.directories)
        error_text = last_words(named.encode(), most=600) or f"Puppet exited {output.ended.code}"
        raise InvalidInputError(f"lookup failed: {error_text}", where=where)
    if request.explain:
        return LookupResult(found="did not find a value" not in text, value=None, explanation=text)
    if output.ended.code == 1:
        return LookupResult(found=False, value=None, explanation="")
    try:
        # What a manifest prints while it compiles stands before the answer, which is one line.
        answer = text.rstrip("\n").rpartition("\n")[2]
        return LookupResult(found=True, value=loads(answer), explanation="")
    except ValueError as error:
        raise InvalidInputError("Puppet printed no value", where=where) from error
