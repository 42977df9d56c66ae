"""What a preview found: groups of equal differences, failures, and what it cannot see.

A node is in exactly one of these sets: unaffected, changed (in one group), failed.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Literal

from localpuppet.base.formats.values import field_values
from localpuppet.base.value import Value
from localpuppet.node.preview.difference import CatalogDifference

SCHEMA = 1

# Which of the two revisions fails to compile.
NEW: Literal["new"] = "new"  # only HEAD
BOTH: Literal["both"] = "both"  # with different errors
SAME: Literal["same"] = "same"  # both, with the same error
FIXED: Literal["fixed"] = "fixed"  # only BASE
UNREADABLE: Literal["unreadable"] = "unreadable"  # the capture cannot be read
FailureKind = Literal["new", "both", "same", "fixed", "unreadable"]

OK, FAILED, DIFFERENT, CANNOT_TELL = 0, 1, 4, 5


class PreviewRevision(Value):
    """A revision that a preview compiled.

    Attributes:
        name: What the user wrote: `main`; `work tree` for the files as they are.
        commit: The commit; `None` for a work tree.
    """

    name: str
    commit: str | None = None


class ChangeGroup(Value):
    """Nodes whose catalogs differ in the same way.

    Attributes:
        difference: The difference; with placeholders for names and addresses (`⟨hostname⟩`) if
            there are several nodes.
        nodes: The nodes, sorted.
        roles: The roles of these nodes, sorted; empty if they have none.
    """

    difference: CatalogDifference
    nodes: tuple[str, ...]
    roles: tuple[str, ...] = ()


class NodeFailure(Value):
    """A node whose catalog does not compile.

    Attributes:
        node: The node.
        kind: why it counts.
        message: Puppet's error in one line.
        file: The file in the release; `None` if unknown.
        line: The line; `None` if unknown.
    """

    node: str
    kind: FailureKind
    message: str
    file: str | None = None
    line: int | None = None


class BlindSpot(Value):
    """A change whose effect compiling cannot show.

    Attributes:
        file: The file in the release that changed: `modules/x/lib/facter/role.rb`.
        reason: Why: `a custom fact changed`.
        nodes: The nodes that it concerns, sorted.
    """

    file: str
    reason: str
    nodes: tuple[str, ...]


class RevisionWarning(Value):
    """A part of a revision that no catalog depends on, and its author may think so.

    Attributes:
        revision: The name of the revision.
        text: The part, and why it is not used.
    """

    revision: str
    text: str


class ImpureNode(Value):
    """A node whose catalog depends on more than its capture and the release.

    Attributes:
        node: The node.
        reasons: What the compilation used: `Time.now`, sorted.
    """

    node: str
    reasons: tuple[str, ...]


class ForbiddenDifference(Value):
    """A difference that `--fail-on` forbids.

    Attributes:
        rule: The option's text.
        reference: The resource, with placeholders for names and addresses.
        nodes: The nodes, sorted.
    """

    rule: str
    reference: str
    nodes: tuple[str, ...]


class PreviewStatistics(Value):
    """What a preview did.

    Attributes:
        compiled: How many catalogs it compiled.
        cached: How many catalogs it took from the cache.
        seconds: How long it took.
    """

    compiled: int = 0
    cached: int = 0
    seconds: float = 0.0


class PreviewResult(Value):
    """The result of a preview.

    Attributes:
        base: The revision before the change.
        head: The revision after the change.
        nodes: How many nodes were compared.
        groups: Groups of nodes with equal differences, the largest first.
        failures: Nodes that do not compile: new failures first, then by name.
        violations: Differences that the user forbids.
        blind_spots: Changes whose effect is unknown, sorted by file.
        impure: Nodes whose catalogs depend on more than their input, sorted.
        statistics: What the preview did.
        warnings: What `release check` warns of, too: those of HEAD, and what BASE has besides.
        tolerates: Whether nodes that fail as before do not fail the preview.
        shard: Which part of the nodes: `2/8`; `None` for all.
    """

    base: PreviewRevision
    head: PreviewRevision
    nodes: int
    groups: Sequence[ChangeGroup] = ()
    failures: Sequence[NodeFailure] = ()
    violations: Sequence[ForbiddenDifference] = ()
    blind_spots: Sequence[BlindSpot] = ()
    impure: Sequence[ImpureNode] = ()
    statistics: PreviewStatistics = field(default_factory=PreviewStatistics)
    warnings: Sequence[RevisionWarning] = ()
    tolerates: bool = False
    shard: str | None = None

    @property
    def changed(self) -> int:
        """Return how many nodes change."""
        return sum(len(group.nodes) for group in self.groups)

    def failing(self, *kinds: FailureKind) -> int:
        """Return how many nodes have failures of some kinds."""
        return sum(failure.kind in kinds for failure in self.failures)

    @property
    def unaffected(self) -> int:
        """Return how many nodes compile to the same catalog."""
        return self.nodes - self.changed - len(self.failures)

    def exit_code(self, *, detailed: bool) -> int:
        """Return the exit code of the command.

        Args:
            detailed: Whether differences and blind spots have codes of their own.
        """
        as_before = 0 if self.tolerates else self.failing(SAME)
        if self.failing(NEW, BOTH, UNREADABLE) or as_before or self.violations:
            return FAILED
        if not detailed:
            return OK
        if self.blind_spots:
            return CANNOT_TELL
        return DIFFERENT if self.groups else OK

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema": SCHEMA,
            "base": field_values(self.base),
            "head": field_values(self.head),
            "shard": self.shard,
            "nodes": self.nodes,
            "unaffected": self.unaffected,
            "changed": self.changed,
            "groups": [
                {**field_values(group), "difference": group.difference.to_dict()}
                for group in self.groups
            ],
            "failures": [*map(field_values, self.failures)],
            "violations": [*map(field_values, self.violations)],
            "blind_spots": [*map(field_values, self.blind_spots)],
            "impure": [*map(field_values, self.impure)],
            "warnings": [*map(field_values, self.warnings)],
            "statistics": field_values(self.statistics),
        }
