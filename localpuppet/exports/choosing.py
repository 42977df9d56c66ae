"""Which of the resources that a collector asks for are taken, and what of them.

Owns: the order of the decisions, what `guarded` takes away, and what stops a run. Refuses to know:
how a collector asks (`search`), how a policy is written (`policy`).

- A type that no line names stops the run, with the line that would allow it: nobody has decided.
- Where lines name the type, a resource of a signer that no line is about is left out, and named,
  before titles are compared: one peer stops nobody.
- Guarded, the parameters in `GUARDED` do not count: they say what is written where, as whom, which
  program runs, or what else in the catalog is touched; nor do those of Puppet's own types that are
  such (`OF_TYPES`). The collector's own block may set them, and a `target` whose very value the
  collector asks for counts: its author wrote it. A newline or `..` in the title, or in what is left
  of the values, leaves the resource out, and so does a path as `ensure` of a `File`: that makes a
  link, and what is below the link is elsewhere.
- What is left out is named, up to `MAX_LEFT_OUT` of it: who has no line fills no memory and no disk
  of ours.
- A collector gets at most `MAX_TAKEN` bytes: more stops the run, with the node that has most of it.
- Two resources with one title, of two nodes whose lines allow them, stop the run, with both places.
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from localpuppet.errors import InvalidInputError
from localpuppet.exports.policy import CollectPolicy, How, line_for
from localpuppet.exports.resource import ExportedResource, Offer, texts_in
from localpuppet.exports.search import Search
from localpuppet.formats.text import one_line
from localpuppet.formats.values import Json
from localpuppet.puppet.metaparameters import METAPARAMETERS

# Shell globs over names of parameters.
GUARDED = (
    # What a resource is called where its title is not: a line's pattern is about the title.
    "name",
    "target",
    "path",
    "config_file",
    "*_dir",
    "owner",
    "group",
    "mode",
    "provider",
    "source",
    "command",
    "command_line",
    "onlyif",
    "unless",
    "refresh",
    "user",
    "*_cmd",
    *METAPARAMETERS,
)
# Of these, what fragments of a file are asked for by. A `path` or a `name` that is asked for would
# be what the line's pattern of titles is meant to say; a tag would tag the resource here, too.
ASKED_FOR = "target"
# Types of Puppet's → more of theirs, by names that are harmless elsewhere.
OF_TYPES: Mapping[str, frozenset[str]] = {
    "Cron": frozenset(("environment",)),
    "Exec": frozenset(("cwd", "environment")),
    "File": frozenset(("staging_location",)),
    "Package": frozenset(
        ("adminfile", "configfiles", "install_options", "responsefile", "uninstall_options")
    ),
    "Service": frozenset(("binary", "control", "manifest", "restart", "start", "status", "stop")),
}
_GUARDED = re.compile("|".join(map(fnmatch.translate, GUARDED)))
_ESCAPES = re.compile(r"\n|\r|\.\.")
_SHOWN = 80
# What to do about what a guarded line does not take.
_AS_IS = ", which a guarded line does not take (an as-is line does)"
# Of a collector, as JSON. What Puppet reads of us at once is larger (`exports.rb`).
MAX_TAKEN = 64 * 1024 * 1024
# Of a collector: so many are named, and the rest is counted.
MAX_LEFT_OUT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A resource that is taken.

    Attributes:
        node: Who exports it.
        resource: What is taken of it.
        how: By which kind of line.
        dropped: Names of the parameters that do not count.
    """

    node: str
    resource: ExportedResource
    how: How
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
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
class Choice:
    """What a collector gets.

    Attributes:
        taken: What is taken, sorted by title and node.
        left_out: What it asked for and does not get; the first of it.
        more_left_out: How many others are left out, too.
    """

    taken: tuple[Taken, ...]
    left_out: tuple[LeftOut, ...]
    more_left_out: int = 0


def choose(
    offers: Iterable[Offer], kind: str, search: Search, *, me: str, policy: CollectPolicy
) -> Choice:
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
    taken: list[Taken] = []
    left_out: list[LeftOut] = []
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
        if isinstance(found, Taken):
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
    return Choice(taken=tuple(taken), left_out=tuple(left_out), more_left_out=more_left_out)


def _taken(offer: Offer, policy: CollectPolicy, named: Mapping[str, Json]) -> Taken | LeftOut:
    node, resource = offer.node, offer.resource
    how = policy.decide(node, resource.type, resource.title)
    if how is None:
        return LeftOut(node=node, ref=resource.ref, reason="no line is about this signer and title")
    if how is How.AS_IS:
        return Taken(node=node, resource=resource, how=how, dropped=())
    own = OF_TYPES.get(resource.type, frozenset())
    dropped = tuple(
        sorted(
            name
            for name, value in resource.parameters.items()
            if (name in own or is_guarded(name)) and not _is_named(name, value, named)
        )
    )
    kept = {name: one for name, one in resource.parameters.items() if name not in dropped}
    if _ESCAPES.search(resource.title):
        return LeftOut(node=node, ref=resource.ref, reason=f"its title has '..'{_AS_IS}")
    if resource.type == "File" and any("/" in text for text in texts_in(kept.get("ensure"))):
        return LeftOut(node=node, ref=resource.ref, reason=f"its ensure is a path{_AS_IS}")
    for name, value in kept.items():
        if any(_ESCAPES.search(text) for text in texts_in(value)):
            reason = f"its {name} has a newline or '..'{_AS_IS}"
            return LeftOut(node=node, ref=resource.ref, reason=reason)
    return Taken(node=node, resource=replace(resource, parameters=kept), how=how, dropped=dropped)


def _is_named(name: str, value: Json, named: Mapping[str, Json]) -> bool:
    """Return whether a collector asks for this very text, and not for one of several."""
    return name == ASKED_FOR and isinstance(value, str) and named.get(name) == value


def is_guarded(parameter: str) -> bool:
    """Return whether, guarded, a parameter of any type counts only where a collector sets it."""
    return _GUARDED.match(parameter) is not None


def _refuse_clash(taken: Sequence[Taken]) -> None:
    seen: dict[str, Taken] = {}
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


def _who(one: Taken) -> str:
    return f"{one.node} ({one.resource.place})" if one.resource.place else one.node


def _short(text: str) -> str:
    shown = one_line(text)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
