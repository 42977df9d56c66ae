"""The lines that a policy lacks for what is exported today, as a person copies them into the file.

Owns: how lines are put together, and which are marked. Refuses to know: files.

- One line a type, with the signers that no line is about yet; a type whose every resource is code
  or a right has one line a title, and a mark. A title that reads as a pattern has no line.
- Whoever copies a line decides: nothing here looks at whether a resource is sound.
"""

from collections.abc import Iterable

from localpuppet.exports.policy import DANGEROUS, CollectPolicy, line_for
from localpuppet.exports.resource import Offer
from localpuppet.trust.policy_lines import ANY

MARK = "# read before you allow it: each {kind} is code or a right on this node"
PATTERN = "# a title of {} has a '*', which a line would take for any text: it has none here"


def proposed(offers: Iterable[Offer], *, me: str, policy: CollectPolicy) -> list[str]:
    """Return the lines, those of a type together.

    Args:
        offers: What is exported.
        me: This node, whose own exports need no line.
        policy: What it takes already.
    """
    lacking: dict[str, dict[str, dict[str, None]]] = {}
    for one in offers:
        kind, title = one.resource.type, one.resource.title
        if one.node == me or policy.decide(one.node, kind, title) is not None:
            continue
        pattern = title if kind in DANGEROUS else ANY
        lacking.setdefault(kind, {}).setdefault(pattern, {})[one.node] = None
    found: list[str] = []
    for kind, titles in sorted(lacking.items()):
        if kind not in DANGEROUS:
            found.append(line_for(sorted(titles[ANY]), kind))
            continue
        found.append(MARK.format(kind=kind))
        for title, nodes in sorted(titles.items()):
            plain = ANY not in title
            found.append(line_for(sorted(nodes), kind, title) if plain else PATTERN.format(kind))
    return found
