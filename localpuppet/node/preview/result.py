"""What a preview found: groups of equal differences and failures, without what identifies a node.

A node is in exactly one of these sets: unaffected, changed (in one group), failed. One that failed
before the change only is in a group as well, in which all of its catalog is added.

    File[/etc/web01.conf]: content: listen 10.0.0.1  ->  File[/etc/⟨hostname⟩.conf]: listen ⟨ip⟩

- Replaced are the certname, the names and the addresses of the node. Loopback addresses stay.
- A name is replaced as a whole word only: `web1` is not a part of `web10`, and no part of `web1x`.
- Longer words win: `web01.example.com` is `⟨fqdn⟩`, not `⟨hostname⟩.example.com`.
- A `⟨` of the catalog is doubled, so that no text looks like a placeholder.

Memory holds one difference for each group, however many nodes there are.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, Literal

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json, field_values, mapping_of
from localpuppet.base.value import Value
from localpuppet.node.preview.difference import (
    ADDED,
    CHANGED,
    REMOVED,
    CatalogDifference,
    ForbiddenChange,
    ParameterChange,
    ResourceChange,
    class_title,
)
from localpuppet.node.preview.preview_limits import (
    MAX_DIFFERENCES,
    MAX_FIXED_DIFFERENCE,
    MAX_VIOLATIONS,
)

SCHEMA = 2

# Which of the two revisions fails to compile.
NEW: Literal["new"] = "new"  # only HEAD
BOTH: Literal["both"] = "both"  # with different errors
SAME: Literal["same"] = "same"  # both, with the same error
FIXED: Literal["fixed"] = "fixed"  # only BASE
UNREADABLE: Literal["unreadable"] = "unreadable"  # the capture cannot be read
FailureKind = Literal["new", "both", "same", "fixed", "unreadable"]

OK, FAILED, DIFFERENT, CANNOT_TELL = 0, 1, 4, 5


class PreviewRevision(Value):
    """A revision that a preview compiled: its name as the user wrote it, or `work tree`."""

    name: str
    commit: str | None = None


class ChangeGroup(Value):
    """Nodes whose catalogs differ in the same way.

    Attributes:
        difference: The difference; with placeholders for names and addresses (`⟨hostname⟩`) if
            there are several nodes.
        restarts: The services that restart on the first of these nodes, sorted.
        fixed: Whether these nodes compile after the change only; then all they have is added.
        left_out: How many classes and resources of such nodes the difference does not show.
    """

    difference: CatalogDifference
    nodes: tuple[str, ...]
    roles: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    fixed: bool = False
    left_out: int = 0


class NodeFailure(Value):
    """A node whose catalog does not compile."""

    node: str
    kind: FailureKind
    message: str
    file: str | None = None
    line: int | None = None


class BlindSpot(Value):
    """A change whose effect compiling cannot show: `a custom fact changed` in some files."""

    files: tuple[str, ...]
    reason: str
    nodes: tuple[str, ...]


class RevisionWarning(Value):
    """A part of a revision that no catalog depends on, though its author may think so."""

    revision: str
    text: str


class ResealedGroup(Value):
    """Sealed values that have other bytes, but the numbers that they had."""

    group: str
    values: int


class ImpureNode(Value):
    """A node whose catalog depends on more than its capture and the release: on `Time.now`."""

    node: str
    reasons: tuple[str, ...]


class ForbiddenDifference(Value):
    """A difference that `--fail-on` forbids."""

    rule: str
    reference: str
    nodes: tuple[str, ...]


class PreviewStatistics(Value):
    compiled: int = 0
    cached: int = 0
    seconds: float = 0.0


class PreviewResult(Value):
    """The result of a preview.

    Attributes:
        groups: Groups of nodes with equal differences, the largest first.
        failures: Nodes that do not compile: new failures first, then by name.
        resealed: Groups whose values were sealed again, sorted; their catalogs stay the same.
        warnings: What `release check` warns of, too: those of HEAD, and what BASE has besides.
    """

    base: PreviewRevision
    head: PreviewRevision
    nodes: int
    groups: Sequence[ChangeGroup] = ()
    failures: Sequence[NodeFailure] = ()
    violations: Sequence[ForbiddenDifference] = ()
    blind_spots: Sequence[BlindSpot] = ()
    resealed: Sequence[ResealedGroup] = ()
    impure: Sequence[ImpureNode] = ()
    statistics: PreviewStatistics = field(default_factory=PreviewStatistics)
    warnings: Sequence[RevisionWarning] = ()
    tolerates: bool = False
    shard: str | None = None

    @property
    def changed(self) -> int:
        """Return how many nodes change that compiled before."""
        return sum(len(group.nodes) for group in self.groups if not group.fixed)

    def failing(self, *kinds: FailureKind) -> int:
        """Return how many nodes have failures of some kinds."""
        return sum(failure.kind in kinds for failure in self.failures)

    @property
    def unaffected(self) -> int:
        """Return how many nodes compile to the same catalog."""
        return self.nodes - self.changed - len(self.failures)

    def exit_code(self, *, detailed: bool) -> int:
        """Return the exit code; `detailed` gives differences and blind spots codes of their own."""
        as_before = 0 if self.tolerates else self.failing(SAME)
        if self.failing(NEW, BOTH, UNREADABLE) or as_before or self.violations:
            return FAILED
        if not detailed:
            return OK
        if self.blind_spots:
            return CANNOT_TELL
        return DIFFERENT if self.groups else OK

    def to_dict(self) -> dict[str, Any]:
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
            "resealed": [*map(field_values, self.resealed)],
            "impure": [*map(field_values, self.impure)],
            "warnings": [*map(field_values, self.warnings)],
            "statistics": field_values(self.statistics),
        }


OPEN, CLOSE = "⟨", "⟩"
_ADDRESSES = ("ip", "ip6", "mac")
# What may not be before or after a word: more of a name, or of an address.
_BEFORE, _AFTER = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"


@dataclass(frozen=True, slots=True)
class NodePlaceholders:
    """The words that identify a node, and their placeholders without brackets."""

    words: Mapping[str, str]
    _pattern: "re.Pattern[str]" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        words = sorted(self.words, key=lambda word: (-len(word), word))
        inner = "|".join(map(re.escape, words))
        pattern = f"{_BEFORE}(?:{inner}){_AFTER}|{OPEN}" if words else OPEN
        object.__setattr__(self, "_pattern", re.compile(pattern))

    @classmethod
    def of(cls, node: str, facts: Mapping[str, Json]) -> "NodePlaceholders":
        words: dict[str, str] = {}
        networking = mapping_of(facts.get("networking"))
        for word, name in (*_names(node, facts, networking), *_addresses(facts, networking)):
            if word and isinstance(word, str):
                words.setdefault(word, name)
        return cls(words)

    def text(self, text: str) -> str:
        return self._pattern.sub(self._placeholder, text)

    def value(self, value: Json) -> Json:
        """Return a value with placeholders in its texts and keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.text(key): self.value(item) for key, item in value.items()}
        return value

    def difference(self, difference: CatalogDifference) -> CatalogDifference:
        """Return a difference with placeholders, sorted again."""
        resources = [
            ResourceChange(
                action=change.action,
                type=change.type,
                title=self.text(change.title),
                parameters=tuple(map(self._parameter, change.parameters)),
            )
            for change in difference.resources
        ]
        relationships = [
            replace(change, source=self.text(change.source), target=self.text(change.target))
            for change in difference.relationships
        ]
        return replace(
            difference,
            resources=tuple(sorted(resources, key=lambda change: (change.type, change.title))),
            relationships=tuple(sorted(relationships)),
        )

    def _parameter(self, change: ParameterChange) -> ParameterChange:
        return replace(change, before=self.value(change.before), after=self.value(change.after))

    def _placeholder(self, match: "re.Match[str]") -> str:
        word = match.group()
        return OPEN * 2 if word == OPEN else f"{OPEN}{self.words[word]}{CLOSE}"


def _names(
    node: str, facts: Mapping[str, Json], networking: Mapping[str, Json]
) -> Iterator[tuple[Json, str]]:
    fqdn = networking.get("fqdn") or facts.get("fqdn")
    hostname = networking.get("hostname") or facts.get("hostname")
    # The certname is usually the FQDN: both have one name.
    yield node, "fqdn" if fqdn in (None, node) else "certname"
    yield fqdn, "fqdn"
    yield hostname or node.partition(".")[0], "hostname"


def _addresses(
    facts: Mapping[str, Json], networking: Mapping[str, Json]
) -> Iterator[tuple[Json, str]]:
    legacy = {"ip": "ipaddress", "ip6": "ipaddress6", "mac": "macaddress"}
    for name in _ADDRESSES:
        yield _own(networking.get(name) or facts.get(legacy[name])), name
    for interface, raw in sorted(mapping_of(networking.get("interfaces")).items()):
        values = mapping_of(raw)
        for name in _ADDRESSES:
            yield _own(values.get(name)), f"{name} of {interface}"
        for name, key in (("ip", "bindings"), ("ip6", "bindings6")):
            listed = values.get(key)
            for number, binding in enumerate(listed if isinstance(listed, list) else (), 1):
                address = _own(mapping_of(binding).get("address"))
                yield address, f"{name} {number} of {interface}"


def _own(address: Json) -> Json:
    """Return an address that other nodes do not have: no loopback, and none that is empty."""
    if not isinstance(address, str) or not address:
        return None
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return None if set(address) <= set("0:") else address  # a MAC address
    return None if parsed.is_loopback or parsed.is_unspecified else address


class NodeFailureGroup(Value):
    """Nodes that fail with the same error; several have placeholders for their names in it."""

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
    restarts: tuple[tuple[str, ...], tuple[str, ...]]
    fixed: bool
    left_out: int
    nodes: list[str] = field(default_factory=list)
    roles: set[str] = field(default_factory=set)


# The reference of violations beyond the limit: no resource has a blank before its bracket.
_MORE = "further resources"


@dataclass(slots=True, eq=False)
class DifferenceGrouping:
    """Groups the differences of nodes, which are in memory until the end: at most `most` bytes.

    A node that compiles after the change only shows at most `most_fixed` bytes of its catalog, and
    all such nodes together half of `most`.
    """

    forbidden: Sequence[ForbiddenChange] = ()
    most: int = MAX_DIFFERENCES
    most_fixed: int = MAX_FIXED_DIFFERENCE
    most_violations: int = MAX_VIOLATIONS
    _groups: dict[tuple[bool, bytes], _OpenGroup] = field(default_factory=dict, init=False)
    _bytes: int = field(default=0, init=False)
    _fixed: int = field(default=0, init=False)
    _violations: dict[tuple[int, str], set[str]] = field(default_factory=dict, init=False)

    def add(
        self,
        node: str,
        difference: CatalogDifference,
        placeholders: NodePlaceholders,
        *,
        role: str | None = None,
        restarts: Callable[[], tuple[str, ...]] = tuple,
        fixed: bool = False,
    ) -> None:
        """Add the difference of a node; an empty one adds nothing.

        `restarts` returns the services that restart on the first node of a group. What a `fixed`
        node had before is unknown: a rule for changed resources forbids those that it adds, too.
        """
        if not difference:
            return
        general = placeholders.difference(difference)
        packed = _packed(general)
        key = fixed, hashlib.sha256(packed).digest()
        if key not in self._groups:
            shown = difference
            if fixed:
                shown = _beginning(difference, min(self.most_fixed, self.most // 2 - self._fixed))
                general = placeholders.difference(shown)
                self._fixed += len(_packed(general))
            else:
                self._count(len(packed), node)
            own = restarts()
            services = own, tuple(sorted(map(placeholders.text, own)))
            left_out = len([*_lines(difference)]) - len([*_lines(shown)])
            self._groups[key] = _OpenGroup(general, shown, services, fixed, left_out)
        group = self._groups[key]
        group.nodes.append(node)
        if role:
            group.roles.add(role)
        for number, rule in enumerate(self.forbidden):
            for change in _lines(difference):
                if _violates(change, rule, fixed=fixed):
                    violation = number, placeholders.text(change.reference)
                    if len(self._violations) >= self.most_violations:
                        # Each names its nodes: what comes now is one for each rule.
                        violation = violation if violation in self._violations else (number, _MORE)
                    self._violations.setdefault(violation, set()).add(node)

    def _count(self, size: int, node: str) -> None:
        self._bytes += size
        if self._bytes > self.most:
            raise InvalidInputError(
                f"the differences have more than {self.most} bytes",
                where=node,
                hint="leave some out with '--ignore', or preview a part with '--shard'",
            )

    def groups(self) -> tuple[ChangeGroup, ...]:
        """Return the groups, the largest first."""
        groups = (
            ChangeGroup(
                difference=group.difference if len(group.nodes) > 1 else group.first,
                nodes=tuple(sorted(group.nodes)),
                roles=tuple(sorted(group.roles)),
                restarts=group.restarts[len(group.nodes) > 1],
                fixed=group.fixed,
                left_out=group.left_out,
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


def _beginning(difference: CatalogDifference, room: int) -> CatalogDifference:
    """Return the first classes and resources of a difference, of `room` bytes."""
    parts: dict[str, list[Any]] = {"classes_added": [], "resources": []}
    for name, kept in parts.items():
        for part in getattr(difference, name):
            room -= len(_packed(part))
            if room < 0:
                return CatalogDifference(**{name: tuple(kept) for name, kept in parts.items()})
            kept.append(part)
    return difference


def _packed(difference: object) -> bytes:
    """Return a difference, or a part of it, as bytes; equal ones have equal bytes."""
    return json.dumps(difference, default=field_values, sort_keys=True).encode()


def _violates(change: ResourceChange, rule: ForbiddenChange, *, fixed: bool) -> bool:
    actions = (change.action, CHANGED) if fixed else (change.action,)
    if rule.action not in actions or not rule.pattern.fits(change.type, change.title):
        return False
    return rule.pattern.parameter is None or any(
        rule.pattern.fits_parameter(parameter.name) for parameter in change.parameters
    )


def _lines(difference: CatalogDifference) -> Iterator[ResourceChange]:
    """Yield the resources that differ, and classes as such."""
    yield from difference.resources
    for action, names in (
        (ADDED, difference.classes_added),
        (REMOVED, difference.classes_removed),
    ):
        for name in names:
            yield ResourceChange(action=action, type="Class", title=class_title(name))
