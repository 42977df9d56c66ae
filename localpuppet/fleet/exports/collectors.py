"""What a collector of this node takes: its condition, and `policies/collect.policy`.

    # signers        types             title              how
    *.web.example.com    Haproxy::Balancermember    *    guarded
    ca01.example.com    File    /etc/ssl/site/*    as-is

- A line matches the node that signed the resource: tags and titles are chosen by the exporter.
- The first line that matches signer, type and title decides. `*` matches all signers and, in a
  title, any text; types are always listed, as each type grants a right.
- Without a file, this node takes `Server` from all trusted nodes, as this type changes nothing.
- A line that cannot be parsed rejects the whole file.
- A proposed line covers one type and all its signers without a line. A type in `DANGEROUS` has a
  mark and a line for each title; a title with a `*` gets none, as it would match other titles.
- Comments before a line list what a guarded line drops and leaves out of the current exports.
- A type in `NEEDS_AS_IS` has an `as-is` line for the signers of which `guarded` leaves something
  out. Other types never have one: exported content must not persuade an operator to trust it.
- No line is checked for harmful resources: the operator who copies it decides.

Conditions, `File <<| tag == web and owner != root |>>`:

- The operators are `==`, `!=`, `and`, `or`; `!=` is true if `==` is false.
- `tag` means any tag of the resource and `title` its title. An array of tags matches if one of them
  does. Tags are compared without case.
- All other values compare as in PuppetDB (`scripts/puppetdb` tests both): texts are case-sensitive,
  1 is not 1.0, an array or a hash equals only the same one, and nothing equals `undef`.

Example: `Search.parse([["tag", "==", "web"], "and", ["owner", "!=", "root"]])`.
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from typing import Any

from localpuppet.base.errors import InvalidInputError, check_limit, errors_at
from localpuppet.base.formats.text import listed, one_line, parse_choice
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_SERVERS
from localpuppet.fleet.exports.resource import (
    OF_TYPES,
    UNREPORTED,
    ExportedResource,
    Offer,
    guard,
    named_type,
    parse_title,
)
from localpuppet.fleet.inventory.entry import ExportedServer, ports_of
from localpuppet.fleet.trust.policy import ANY, Signers, columns, parse_lines, words

_COLUMNS = "signers, types, title, guarded or as-is"
# The predecessor's type, which only reports the address of a server.
SERVER = "Server"
# Types whose every resource, guarded or not, is code or a right on the node that takes it.
DANGEROUS = frozenset(
    listed(
        "Augeas Cron Exec File File_line Firewall Firewallchain Group K5login Mailalias Mount "
        "Mysql_grant Mysql_user Nagios_command Package Reboot Resources Scheduled_task "
        "Schedule Selboolean Selmodule Service Ssh_authorized_key Stage Tidy User Vcsrepo "
        "Yumrepo Zfs Zone Zpool"
    )
)


class CollectMode(StrEnum):
    """The part of a resource that a line takes."""

    GUARDED = "guarded"
    AS_IS = "as-is"


class CollectLine(Value):
    """A line of the collect policy."""

    signers: Signers
    types: frozenset[str]
    title: re.Pattern[str]
    how: CollectMode


class CollectPolicy(Value):
    """The collect policy of a node: the lines of its file, in order."""

    lines: tuple[CollectLine, ...]

    @classmethod
    def parse(cls, data: bytes, *, where: str) -> "CollectPolicy":
        """Return the policy in the UTF-8 text of a file."""
        return cls(lines=tuple(parse_lines(data, _parse_line, where=where)))

    def names(self, kind: str) -> bool:
        """Return whether a line names a type."""
        return any(kind in line.types for line in self.lines)

    def types(self, how: CollectMode) -> frozenset[str]:
        """Return the types of the lines with a mode."""
        return frozenset().union(*(line.types for line in self.lines if line.how is how))

    def warnings(self) -> list[str]:
        """Return a warning for each type that may grant code execution or a right, sorted by type.

        Guarded lines also cause one for core types of Puppet that reach beyond their title.
        """
        whole, guarded = self.types(CollectMode.AS_IS), self.types(CollectMode.GUARDED)
        texts = {
            kind: f"takes {kind} guarded: its title and what guarded keeps of it are the signer's"
            " choice (name titles)"
            for kind in guarded & (DANGEROUS | OF_TYPES.keys())
        }
        for kind in whole & DANGEROUS:
            texts[kind] = f"takes {kind} as it is: its signers get root access to this node"
        return [texts[kind] for kind in sorted(texts)]

    def decide(self, signer: str, kind: str, title: str) -> CollectMode | None:
        """Return the mode of the first line that matches; `None` if no line matches."""
        for line in self.lines:
            if (
                kind in line.types
                and line.signers.include(signer)
                and line.title.fullmatch(title) is not None
            ):
                return line.how
        return None


DEFAULT = CollectPolicy(
    lines=(
        CollectLine(
            signers=Signers(names=None),
            types=frozenset((SERVER,)),
            title=re.compile(".*"),
            how=CollectMode.GUARDED,
        ),
    )
)


def line_for(
    signers: Iterable[str], kind: str, title: str = ANY, how: CollectMode = CollectMode.GUARDED
) -> str:
    """Return the policy line that allows resources."""
    return "\t".join((" ".join(signers), kind, title, how))


def _parse_line(line: str, _number: int) -> CollectLine:
    fields = columns(line)
    if len(fields) not in (3, 4):
        raise InvalidInputError(
            "is not a line of a policy", hint=f"write tab-separated columns: {_COLUMNS}"
        )
    signers, types = map(words, fields[:2])
    if types is None:
        raise InvalidInputError("a type is a right: name it", hint="File Host Concat::Fragment")
    return CollectLine(
        signers=Signers.parse(signers),
        types=frozenset(map(named_type, types)),
        title=re.compile(fnmatch.translate(_literal(parse_title(fields[2])))),
        how=parse_choice(
            CollectMode,
            fields[3] if len(fields) == 4 else CollectMode.GUARDED,
            what="a way to take a resource",
        ),
    )


def _literal(pattern: str) -> str:
    """Return a pattern for `fnmatch` in which only `*` is a wildcard."""
    return re.sub(r"([?\[])", r"[\1]", pattern)


def servers_of(resources: Iterable[ExportedResource]) -> tuple[ExportedServer, ...]:
    """Return the servers among resources (type `Server`); reject too many or invalid ones."""
    servers = [_server(resource) for resource in resources if resource.type == SERVER]
    what, unit = "exceed the limit", f"of type {SERVER}"
    check_limit(len(servers), MAX_SERVERS, what=what, unit=unit, where="exports")
    return tuple(servers)


def _server(resource: ExportedResource) -> ExportedServer:
    role, address = (
        resource.parameters.get("role", resource.title),
        resource.parameters.get("ipaddress"),
    )
    if not isinstance(role, str) or not (address is None or isinstance(address, str)):
        raise InvalidInputError("its role and its ipaddress must be strings", where=resource.ref)
    with errors_at(resource.ref):
        ports = ports_of(resource.parameters.get("ports"))
    return ExportedServer(role=role, ipaddress=address or None, ports=ports, since=resource.since)


MARK = "# read before you allow it: each {kind} is code or a right on this node"
PATTERN = "# a title of {} has a '*', which a line would take for any text: it has none here"
# Types whose content usually has several lines.
NEEDS_AS_IS = frozenset(("Concat::Fragment",))
# Left-out resources that comments name before a line; the rest is counted.
MAX_NAMED = 3


@dataclass(slots=True)
class _GuardLoss:
    """What a guarded line takes away from the exports of one signer."""

    dropped: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)


def proposed(offers: Iterable[Offer], *, me: str, policy: CollectPolicy) -> list[str]:
    """Return the proposed lines for exports of others than `me`, grouped by type."""
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


MAX_CONDITIONS = 1000
MAX_DEPTH = 60

_JOINS = ("and", "or")
_WHERE = "collector"
_SHOWN = 80
# Bytes of JSON for one collector. The limit for one reply to Puppet is larger (`exports.rb`).
MAX_TAKEN = 64 * 1024 * 1024
# Left-out resources listed for one collector; the rest is counted.
MAX_LEFT_OUT = 1000


Condition = list[Any]


class Search(Value):
    """The condition of a collector in Puppet's JSON form, checked; `None` matches all resources."""

    condition: Condition | None

    @classmethod
    def parse(cls, raw: Json) -> "Search":
        """Return the search of `[NAME, "==", VALUE]`, `[CONDITION, "and", CONDITION]` or null."""
        return cls(condition=None if raw is None else _checked(raw, 0, count(1)))

    def matches(self, resource: ExportedResource) -> bool:
        return self.condition is None or _matches(self.condition, resource)

    def named(self) -> Mapping[str, Json]:
        """Return the parameter values that every match has, as written in the collector."""
        return dict(_required(self.condition))

    def tag(self) -> str | None:
        """Return a tag that every match has; `None` if there is no such tag."""
        for name, value in _required(self.condition):
            if name == "tag" and isinstance(value, str):
                return value.lower()
        return None


def show(raw: Json) -> str:
    """Return a condition that `Search.parse` accepted, in Puppet's syntax: `tag == "web"`."""
    if not isinstance(raw, list):
        return ""
    left, operator, right = raw
    if isinstance(left, list):
        return f"({show(left)}) {operator} ({show(right)})"
    return f"{left} {operator} {_shown(right)}"


def as_query(kind: str, search: Search) -> list[Json]:
    """Return the query for resources, in PuppetDB's array form, that matches a collector.

    The query is case-sensitive where a collector is not, and ignores the collect policy: it finds
    the nodes that a collector may take resources from.
    """
    whole: list[Json] = ["and", ["=", "type", kind], ["=", "exported", True]]
    condition = search.condition
    return whole if condition is None else [*whole, _as_condition(condition)]


def _as_condition(condition: Condition) -> list[Json]:
    left, operator, right = condition
    if operator in _JOINS:
        return [operator, _as_condition(left), _as_condition(right)]
    if left == "tag" and isinstance(right, list) and right:
        tags: list[Json] = [["=", "tag", str(value)] for value in right]
        test: list[Json] = ["or", *tags]
    else:
        field: Json = left if left in ("tag", "title") else ["parameter", left]
        test = ["=", field, right]
    return ["not", test] if operator == "!=" else test


def _shown(value: Json) -> str:
    if value is None:
        return "undef"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_shown(key)} => {_shown(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _checked(raw: Json, depth: int, parts: Iterator[int]) -> Condition:
    if depth > MAX_DEPTH or next(parts) > MAX_CONDITIONS:
        raise InvalidInputError("has too many conditions", where=_WHERE)
    if not isinstance(raw, list) or len(raw) != 3:
        raise InvalidInputError("is not a condition of a collector", where=_WHERE)
    left, operator, right = raw
    if operator in _JOINS:
        return [_checked(left, depth + 1, parts), operator, _checked(right, depth + 1, parts)]
    if operator not in ("==", "!=") or not isinstance(left, str):
        raise InvalidInputError("is an unsupported comparison", where=_WHERE, hint="use == or !=")
    if isinstance(right, dict) and left in ("tag", "title"):
        raise InvalidInputError(f"compares a {left} with a hash", where=_WHERE)
    return raw


def _matches(condition: Condition, resource: ExportedResource) -> bool:
    left, operator, right = condition
    if operator in _JOINS:
        join = all if operator == "and" else any
        return join(_matches(part, resource) for part in (left, right))
    if left == "tag":
        wanted = right if isinstance(right, list) else [right]
        is_equal = any(str(value).lower() in resource.tags for value in wanted)
    else:
        actual = resource.title if left == "title" else resource.parameters.get(left)
        is_equal = actual is not None and _same(actual, right)
    return is_equal is (operator == "==")


def _required(condition: Condition | None) -> Iterator[tuple[str, Json]]:
    """Yield the names and values of the comparisons that every match meets."""
    if condition is None:
        return
    left, operator, right = condition
    if operator == "and":
        yield from _required(left)
        yield from _required(right)
    elif operator == "==":
        yield left, right


def _same(left: Json, right: Json) -> bool:
    """Return whether both are the same JSON value; 1 equals neither 1.0 nor true."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    return type(left) is type(right) and left == right


class TakenResource(Value):
    """A resource that a collector takes."""

    node: str
    resource: ExportedResource
    how: CollectMode
    dropped: tuple[str, ...]


class RejectedResource(Value):
    """A resource that a collector leaves out."""

    node: str
    resource: str
    reason: str


class CollectorResult(Value):
    """What a collector takes, by title and node, and the first `MAX_LEFT_OUT` left out."""

    taken: tuple[TakenResource, ...]
    left_out: tuple[RejectedResource, ...]
    more_left_out: int = 0


def choose(
    offers: Iterable[Offer], kind: str, search: Search, *, me: str, policy: CollectPolicy
) -> CollectorResult:
    """Return which offers of its type a collector of this node takes, and which it leaves out."""
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
