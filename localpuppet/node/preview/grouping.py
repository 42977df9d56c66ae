"""Collects the differences and failures of nodes; equal ones become one group.

Memory holds one difference for each group, however many nodes there are.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import field_values
from localpuppet.base.value import Value
from localpuppet.node.preview.difference import (
    ADDED,
    REMOVED,
    CatalogDifference,
    ResourceChange,
    class_title,
)
from localpuppet.node.preview.patterns import ForbiddenChange
from localpuppet.node.preview.placeholders import NodePlaceholders
from localpuppet.node.preview.result import (
    ChangeGroup,
    FailureKind,
    ForbiddenDifference,
    NodeFailure,
)

# Bytes of all differences, which are in memory until the end.
MAX_BYTES = 256 * 1024 * 1024


class NodeFailureGroup(Value):
    """Nodes that fail with the same error.

    Attributes:
        kind: a `FailureKind`.
        message: Puppet's error; with placeholders for the name if there are several nodes.
        file: The file in the release; `None` if unknown.
        line: The line; `None` if unknown.
        nodes: The nodes, sorted.
    """

    kind: FailureKind
    message: str
    file: str | None
    line: int | None
    nodes: tuple[str, ...]


def failure_groups(failures: Iterable[NodeFailure]) -> tuple[NodeFailureGroup, ...]:
    """Return the failures with equal ones as one group, the largest first."""
    equal: dict[tuple[FailureKind, str, str | None, int | None], list[NodeFailure]] = {}
    for failure in failures:
        message = NodePlaceholders.of(failure.node, {}).text(failure.message)
        key = failure.kind, message, failure.file, failure.line
        equal.setdefault(key, []).append(failure)
    groups = (
        NodeFailureGroup(
            kind=kind,
            message=message if len(members) > 1 else members[0].message,
            file=file,
            line=line,
            nodes=tuple(sorted(failure.node for failure in members)),
        )
        for (kind, message, file, line), members in equal.items()
    )
    return tuple(sorted(groups, key=lambda group: (-len(group.nodes), group.nodes)))


@dataclass(slots=True, eq=False)
class _OpenGroup:
    difference: CatalogDifference
    first: CatalogDifference
    nodes: list[str] = field(default_factory=list)
    roles: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class DifferenceGrouping:
    """Groups the differences of nodes.

    Attributes:
        forbidden: Changes that the user forbids.
    """

    forbidden: Sequence[ForbiddenChange] = ()
    _groups: dict[bytes, _OpenGroup] = field(default_factory=dict, init=False)
    _bytes: int = field(default=0, init=False)
    _violations: dict[tuple[int, str], set[str]] = field(default_factory=dict, init=False)

    def add(
        self,
        node: str,
        difference: CatalogDifference,
        placeholders: NodePlaceholders,
        *,
        role: str | None = None,
    ) -> None:
        """Add the difference of a node; an empty one adds nothing.

        Args:
            node: The node.
            difference: Its difference, with its own names and addresses.
            placeholders: Replaces these names and addresses.
            role: The role of the node; `None` if it has none.
        """
        if not difference:
            return
        general = placeholders.difference(difference)
        packed = _packed(general)
        key = hashlib.sha256(packed).digest()
        self._bytes += 0 if key in self._groups else len(packed)
        if self._bytes > MAX_BYTES:
            raise InvalidInputError(
                f"the differences have more than {MAX_BYTES} bytes",
                where=node,
                hint="leave some out with '--ignore', or preview a part with '--shard'",
            )
        group = self._groups.setdefault(key, _OpenGroup(general, difference))
        group.nodes.append(node)
        if role:
            group.roles.add(role)
        for number, rule in enumerate(self.forbidden):
            for change in (*difference.resources, *_classes(difference)):
                if _violates(change, rule):
                    reference = placeholders.text(change.reference)
                    self._violations.setdefault((number, reference), set()).add(node)

    def groups(self) -> tuple[ChangeGroup, ...]:
        """Return the groups, the largest first."""
        groups = (
            ChangeGroup(
                difference=group.difference if len(group.nodes) > 1 else group.first,
                nodes=tuple(sorted(group.nodes)),
                roles=tuple(sorted(group.roles)),
            )
            for group in self._groups.values()
        )
        return tuple(sorted(groups, key=lambda group: (-len(group.nodes), group.nodes)))

    def violations(self) -> tuple[ForbiddenDifference, ...]:
        """Return the differences that are forbidden, in the order of the rules."""
        return tuple(
            ForbiddenDifference(
                rule=self.forbidden[number].text, reference=reference, nodes=tuple(sorted(nodes))
            )
            for (number, reference), nodes in sorted(self._violations.items())
        )


def _packed(difference: CatalogDifference) -> bytes:
    """Return a difference as bytes; equal ones have equal bytes."""
    return json.dumps(difference, default=field_values, sort_keys=True).encode()


def _violates(change: ResourceChange, rule: ForbiddenChange) -> bool:
    if change.action != rule.action or not rule.pattern.fits(change.type, change.title):
        return False
    return rule.pattern.parameter is None or any(
        rule.pattern.fits_parameter(parameter.name) for parameter in change.parameters
    )


def _classes(difference: CatalogDifference) -> tuple[ResourceChange, ...]:
    return tuple(
        ResourceChange(action=action, type="Class", title=class_title(name))
        for action, names in (
            (ADDED, difference.classes_added),
            (REMOVED, difference.classes_removed),
        )
        for name in names
    )
