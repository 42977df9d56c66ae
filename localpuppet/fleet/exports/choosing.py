"""Which of the resources that a collector asks for are taken, and what of them.

Owns: the order of the decisions, and what stops a run. Refuses to know: how a collector asks
(`search`), how a policy is written (`policy`), what `guarded` takes away (`guarding`).

- A type that no line names stops the run, with the line that would allow it: nobody has decided.
- Where lines name the type, a resource of a signer that no line is about is left out, and named,
  before titles are compared: one peer stops nobody.
- What is left out is named, up to `MAX_LEFT_OUT` of it: who has no line fills no memory and no disk
  of ours.
- A collector gets at most `MAX_TAKEN` bytes: more stops the run, with the node that has most of it.
- Two resources with one title, of two nodes whose lines allow them, stop the run, with both places.
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
# Of a collector, as JSON. What Puppet reads of us at once is larger (`exports.rb`).
MAX_TAKEN = 64 * 1024 * 1024
# Of a collector: so many are named, and the rest is counted.
MAX_LEFT_OUT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenResource:
    """A resource that is taken.

    Attributes:
        node: Who exports it.
        resource: What is taken of it.
        how: By which kind of line.
        dropped: Names of the parameters that do not count.
    """

    node: str
    resource: ExportedResource
    how: CollectMode
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedResource:
    """A resource that is not.

    Attributes:
        node: Who exports it.
        ref: Its type and title.
        reason: Why, in one line.
    """

    node: str
    ref: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorResult:
    """What a collector gets.

    Attributes:
        taken: What is taken, sorted by title and node.
        left_out: What it asked for and does not get; the first of it.
        more_left_out: How many others are left out, too.
    """

    taken: tuple[TakenResource, ...]
    left_out: tuple[RejectedResource, ...]
    more_left_out: int = 0


def choose(
    offers: Iterable[Offer], kind: str, search: Search, *, me: str, policy: CollectPolicy
) -> CollectorResult:
    """Return what a collector of this node gets.

    Args:
        offers: Resources of the type; others than those asked for may be among them.
        kind: The type.
        search: What is asked for.
        me: This node, whose own exports Puppet has in the catalog already.
        policy: What the node takes.

    Raises:
        InvalidInputError: No line names the type, two nodes export one title, or what is taken is
            too large.
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
                f"{offer.node} exports it, and no line of the policy is about {kind}",
                where=_short(resource.ref),
                hint="localpuppet exports --policy prints the line for policies/collect.policy: "
                + line_for([offer.node], kind).replace("\t", "<TAB>"),
            )
        found = _taken(offer, policy, named)
        if isinstance(found, TakenResource):
            taken.append(found)
            sizes[offer.node] += offer.size
            size += offer.size
            if size > MAX_TAKEN:
                raise _too_large(kind, sizes)
        elif len(left_out) < MAX_LEFT_OUT:
            left_out.append(found)
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
            node=node, ref=resource.ref, reason="no line is about this signer and title"
        )
    if how is CollectMode.AS_IS:
        return TakenResource(node=node, resource=resource, how=how, dropped=())
    guarded = guard(resource, named)
    if guarded.reason is not None:
        reason = f"{guarded.reason}, which a guarded line does not take (an as-is line does)"
        return RejectedResource(node=node, ref=resource.ref, reason=reason)
    kept = replace(resource, parameters=guarded.parameters)
    return TakenResource(node=node, resource=kept, how=how, dropped=guarded.dropped)


def _refuse_clash(taken: Sequence[TakenResource]) -> None:
    seen: dict[str, TakenResource] = {}
    for one in taken:
        other = seen.setdefault(one.resource.title, one)
        if other is not one:
            raise InvalidInputError(
                f"is exported by {_who(other)} and by {_who(one)}",
                where=_short(one.resource.ref),
                hint="give each a title of its own, with the node's name in it",
            )


def _too_large(kind: str, sizes: Counter[str]) -> InvalidInputError:
    ((node, size),) = sizes.most_common(1)
    return InvalidInputError(
        f"are too large: more than {MAX_TAKEN // 1024**2} MiB of {kind}, and of one node up to"
        f" {-(-size // 1024)} KiB ({node})",
        hint="ask for fewer, by a tag, or take fewer signers into policies/collect.policy",
    )


def _who(one: TakenResource) -> str:
    return f"{one.node} ({one.resource.place})" if one.resource.place else one.node


def _short(text: str) -> str:
    shown = one_line(text)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
