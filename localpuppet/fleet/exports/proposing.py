"""Propose the lines that a collect policy lacks for the current exports, for an operator to copy.

- A line covers one type and all its signers without a line. A type in `DANGEROUS` has a mark and a
  line for each title; a title with a `*` gets none, as it would match other titles.
- Comments before a line list what a guarded line drops and leaves out of the current exports.
- A type in `NEEDS_AS_IS` has an `as-is` line for the signers of which `guarded` leaves something
  out. Other types never have one: exported content must not persuade an operator to trust it.
- No line is checked for harmful resources: the operator who copies it decides.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from localpuppet.fleet.exports.policy import DANGEROUS, CollectMode, CollectPolicy, line_for
from localpuppet.fleet.exports.resource import UNREPORTED, Offer, guard
from localpuppet.fleet.trust.policy_lines import ANY

MARK = "# read before you allow it: each {kind} is code or a right on this node"
PATTERN = "# a title of {} has a '*', which a line would take for any text: it has none here"
# Types whose content usually has several lines.
NEEDS_AS_IS = frozenset(("Concat::Fragment",))
# Left-out resources that comments name before a line; the rest is counted.
MAX_NAMED = 3


@dataclass(slots=True)
class _GuardLoss:
    """What a guarded line takes away from the exports of one signer.

    Attributes:
        dropped: Names of dropped parameters.
        left_out: Left-out resources, each with the reason, as text for a comment.
    """

    dropped: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)


def proposed(offers: Iterable[Offer], *, me: str, policy: CollectPolicy) -> list[str]:
    """Return the proposed lines, grouped by type.

    Args:
        offers: The current exports.
        me: This node, whose own exports need no line.
        policy: The current policy.
    """
    lacking: dict[str, dict[str, dict[str, _GuardLoss]]] = {}
    for offer in offers:
        kind, title = offer.resource.type, offer.resource.title
        if offer.node == me or policy.decide(offer.node, kind, title) is not None:
            continue
        pattern = title if kind in DANGEROUS else ANY
        signers = lacking.setdefault(kind, {}).setdefault(pattern, {})
        loss, guarded = signers.setdefault(offer.node, _GuardLoss()), guard(offer.resource, {})
        loss.dropped |= set(guarded.dropped) - UNREPORTED
        if guarded.reason is not None:
            loss.left_out.append(f"{offer.resource.ref} of {offer.node}: {guarded.reason}")
    lines: list[str] = []
    for kind, titles in sorted(lacking.items()):
        if kind in DANGEROUS:
            lines.append(MARK.format(kind=kind))
        for title, signers in sorted(titles.items()):
            if kind in DANGEROUS and ANY in title:
                lines.append(PATTERN.format(kind))
            else:
                lines += _lines(kind, title, signers)
    return lines


def _lines(kind: str, title: str, signers: Mapping[str, _GuardLoss]) -> list[str]:
    """Return the lines for these signers with comments: one guarded, one as-is, or both."""
    lines: list[str] = []
    whole = {node: loss for node, loss in signers.items() if loss.left_out and kind in NEEDS_AS_IS}
    guarded = {node: loss for node, loss in signers.items() if node not in whole}
    for how, losses in ((CollectMode.AS_IS, whole), (CollectMode.GUARDED, guarded)):
        if losses:
            lines += _comments(losses.values(), how)
            lines.append(line_for(sorted(losses), kind, title, how))
    return lines


def _comments(losses: Collection[_GuardLoss], how: CollectMode) -> Iterator[str]:
    dropped = sorted({name for loss in losses for name in loss.dropped})
    left_out = sorted(text for loss in losses for text in loss.left_out)
    if dropped:
        yield f"# guarded drops {', '.join(dropped)}"
    for text in left_out[:MAX_NAMED]:
        yield f"# guarded leaves out {text}"
    if len(left_out) > MAX_NAMED:
        yield f"# guarded leaves out {len(left_out) - MAX_NAMED} more"
    if how is CollectMode.AS_IS:
        yield "# as-is trusts these signers with every parameter: read the type before you allow it"
