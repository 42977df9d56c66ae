"""Changes whose effect on a node no catalog shows: custom facts, types and providers.

modules/x/lib/puppet/provider/thing/ruby.rb  ->  the nodes whose catalogs have a Thing
modules/x/lib/facter/role.rb                 ->  all nodes
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from localpuppet.base.value import Value
from localpuppet.node.preview.release_index import DIRECTORY, ReleaseIndex
from localpuppet.node.preview.result import BlindSpot

_FACT = re.compile(r"(?:.*/)?(?:lib/facter/.+\.rb|facts\.d/[^/]+)")
_TYPE = re.compile(r"(?:.*/)?lib/puppet/type/([a-z]\w*)(?:\.rb|/.+)")
_PROVIDER = re.compile(r"(?:.*/)?lib/puppet/provider/([a-z]\w*)(?:\.rb|/.+)")
# Ruby that types, providers and facts use, and nothing that compiles a catalog reads by itself.
_HELPER = re.compile(r"((?:.*/)?)lib/(?:puppet_x|puppet/(?:util|property|parameter)|augeas)/.+")


class BlindChange(Value):
    """A changed file whose effect no catalog shows.

    Attributes:
        file: The file.
        reason: What it is.
        types: The types that it concerns, in lower case; `None` for all nodes.
    """

    file: str
    reason: str
    types: frozenset[str] | None

    def concerns(self, types: Iterable[str]) -> bool:
        """Return whether it concerns a node whose catalog has resources of these types."""
        return self.types is None or any(name.lower() in self.types for name in types)


def blind_changes(before: ReleaseIndex, after: ReleaseIndex) -> list[BlindChange]:
    """Return the changed files whose effect no catalog shows, sorted."""
    changes = []
    for name in sorted(before.states.keys() | after.states.keys()):
        states = before.states.get(name), after.states.get(name)
        if states[0] == states[1] or DIRECTORY in states:
            continue
        change = _blind(name, (before, after))
        if change is not None:
            changes.append(change)
    return changes


def blind_spots(
    changes: Iterable[BlindChange], types: Mapping[str, frozenset[str]]
) -> Iterator[BlindSpot]:
    """Yield the blind spots with their nodes; none for a file that concerns no node.

    Args:
        changes: The changed files.
        types: Node → the types of its resources before and after the change.
    """
    for change in changes:
        nodes = tuple(sorted(node for node, names in types.items() if change.concerns(names)))
        if nodes:
            yield BlindSpot(file=change.file, reason=change.reason, nodes=nodes)


def _blind(name: str, indexes: tuple[ReleaseIndex, ReleaseIndex]) -> BlindChange | None:
    if _FACT.fullmatch(name):
        return BlindChange(file=name, reason="a custom fact changed", types=None)
    for pattern, what in ((_TYPE, "type"), (_PROVIDER, "provider")):
        match = pattern.fullmatch(name)
        if match:
            types = frozenset((match[1],))
            return BlindChange(file=name, reason=f"a custom {what} changed", types=types)
    match = _HELPER.fullmatch(name)
    if match is None:
        return None
    reason = "code that custom types, providers or facts use changed"
    return BlindChange(file=name, reason=reason, types=_types_of(match[1], indexes))


def _types_of(module: str, indexes: tuple[ReleaseIndex, ReleaseIndex]) -> frozenset[str] | None:
    """Return the types that a module has code for; `None` if it has custom facts, too."""
    types = set()
    for index in indexes:
        for name in index.states:
            if not name.startswith(f"{module}lib/"):
                continue
            if _FACT.fullmatch(name):
                return None
            match = _TYPE.fullmatch(name) or _PROVIDER.fullmatch(name)
            if match:
                types.add(match[1])
    return frozenset(types)
