"""Choose the resources that a collector takes, and the parameters that it gets of each.

- If no policy line names the type, the run stops with the line that would allow it.
- If lines name the type but none matches the signer and title, the resource is left out and
  reported. This precedes the comparison of titles, so that one peer cannot stop other nodes.
- At most `MAX_LEFT_OUT` left-out resources are listed, so that an unauthorised signer cannot fill
  memory or disk.
- A collector gets at most `MAX_TAKEN` bytes. A larger result stops the run and names the node with
  the most bytes.
- If two allowed nodes export the same title, the run stops and names both places.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json
from localpuppet.fleet.exports.guarding import guard
from localpuppet.fleet.exports.policy import CollectMode, CollectPolicy, line_for
from localpuppet.fleet.exports.resource import ExportedResource, Offer
from localpuppet.fleet.exports.search import Search

_SHOWN = 80
# Bytes of JSON for one collector. The limit for one reply to Puppet is larger (`exports.rb`).
MAX_TAKEN = 64 * 1024 * 1024
# Left-out resources listed for one collector; the rest is counted.
MAX_LEFT_OUT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenResource:
    """A resource that a collector takes.

    Attributes:
        node: The exporting node.
        resource: The resource with the parameters that count.
        how: The mode of the matching line.
        dropped: Names of the dropped parameters.
    """

    node: str
    resource: ExportedResource
    how: CollectMode
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedResource:
    """A resource that a collector leaves out.

    Attributes:
        node: The exporting node.
        resource: Its type and title.
        reason: Why, in one line.
    """

    node: str
    resource: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorResult:
    """The result of a collector.

    Attributes:
        taken: The resources it takes, sorted by title and node.
        left_out: The first `MAX_LEFT_OUT` matching resources that it leaves out.
        more_left_out: The number of further resources left out.
    """

    taken: tuple[TakenResource, ...]
    left_out: tuple[RejectedResource, ...]
    more_left_out: int = 0


def choose(
    offers: Iterable[Offer], kind: str, search: Search, *, me: str, policy: CollectPolicy
) -> CollectorResult:
    """Return the resources that a collector of this node takes and leaves out.

    Args:
        offers: Resources of the type; some may not match the search.
        kind: The type.
        search: The collector's condition.
        me: This node; Puppet has its own exports in the catalog already.
        policy: This node's collect policy.

    Raises:
        InvalidInputError: No line names the type, two nodes export one title, or the result is too
            large.
    """
    taken: list[TakenResource] = []
    left_out: list[RejectedResource] = []
    more_left_out = 0
    size, sizes = 0, Counter[str]()
    named = search.named()
    for offer in offers:
        resource = offer.resource
        if offer.node == me or resource.type != kind or not search.matches(resource):
            continue
        if not policy.names(kind):
            raise InvalidInputError(
                f"{offer.node} exports it, and no policy line names {kind}",
                where=_short(resource.ref),
                hint="'localpuppet inventory exports --policy' prints a line for collect.policy: "
                + line_for([offer.node], kind).replace("\t", "<TAB>"),
            )
        chosen = _taken(offer, policy, named)
        if isinstance(chosen, TakenResource):
            taken.append(chosen)
            sizes[offer.node] += offer.size
            size += offer.size
            if size > MAX_TAKEN:
                raise _too_large(kind, sizes)
        elif len(left_out) < MAX_LEFT_OUT:
            left_out.append(chosen)
        else:
            more_left_out += 1
    _refuse_clash(taken)
    return CollectorResult(
        taken=tuple(taken), left_out=tuple(left_out), more_left_out=more_left_out
    )


def _taken(
    offer: Offer, policy: CollectPolicy, named: Mapping[str, Json]
) -> TakenResource | RejectedResource:
    node, resource = offer.node, offer.resource
    how = policy.decide(node, resource.type, resource.title)
    if how is None:
        return RejectedResource(
            node=node, resource=resource.ref, reason="no policy line covers this signer and title"
        )
    if how is CollectMode.AS_IS:
        return TakenResource(node=node, resource=resource, how=how, dropped=())
    guarded = guard(resource, named)
    if guarded.reason is not None:
        reason = f"{guarded.reason}, which a guarded line does not take (an as-is line does)"
        return RejectedResource(node=node, resource=resource.ref, reason=reason)
    kept = replace(resource, parameters=guarded.parameters)
    return TakenResource(node=node, resource=kept, how=how, dropped=guarded.dropped)


def _refuse_clash(taken: Sequence[TakenResource]) -> None:
    seen: dict[str, TakenResource] = {}
    for resource in taken:
        other = seen.setdefault(resource.resource.title, resource)
        if other is not resource:
            raise InvalidInputError(
                f"is exported by {_who(other)} and by {_who(resource)}",
                where=_short(resource.resource.ref),
                hint="give each a unique title, for example with the node's name",
            )


def _too_large(kind: str, sizes: Counter[str]) -> InvalidInputError:
    ((node, size),) = sizes.most_common(1)
    return InvalidInputError(
        f"are too large: more than {MAX_TAKEN // 1024**2} MiB of {kind}, and of one node up to"
        f" {-(-size // 1024)} KiB ({node})",
        hint="filter by a tag, or remove signers from policies/collect.policy",
    )


def _who(resource: TakenResource) -> str:
    return (
        f"{resource.node} ({resource.resource.place})" if resource.resource.place else resource.node
    )


def _short(text: str) -> str:
    shown = one_line(text)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
