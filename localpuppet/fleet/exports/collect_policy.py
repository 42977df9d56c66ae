"""Policy of the exported resources that a node takes: `policies/collect.policy`.

    # signers        types             title              how
    *.web.example.com    Haproxy::Balancermember    *    guarded
    ca01.example.com    File    /etc/ssl/site/*    as-is

- A line matches the node that signed the resource: tags and titles are chosen by the exporter.
- The first line that matches signer, type and title decides. `*` matches all signers and, in a
  title, any text; types are always listed, as each type grants a right.
- Without a file, this node takes `Server` from all trusted nodes, as this type changes nothing.
- A line that cannot be parsed rejects the whole file.
- A line covers one type and all its signers without a line. A type in `DANGEROUS` has a mark and a
  line for each title; a title with a `*` gets none, as it would match other titles.
- Comments before a line list what a guarded line drops and leaves out of the current exports.
- A type in `NEEDS_AS_IS` has an `as-is` line for the signers of which `guarded` leaves something
  out. Other types never have one: exported content must not persuade an operator to trust it.
- No line is checked for harmful resources: the operator who copies it decides.
"""

import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from localpuppet.base.errors import InvalidInputError, check_limit, errors_at
from localpuppet.base.formats.text import parse_choice
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
    (
        "Augeas",
        "Cron",
        "Exec",
        "File",
        "File_line",
        "Firewall",
        "Firewallchain",
        "Group",
        "K5login",
        "Mailalias",
        "Mount",
        "Mysql_grant",
        "Mysql_user",
        "Nagios_command",
        "Package",
        "Reboot",
        "Resources",
        "Scheduled_task",
        "Schedule",
        "Selboolean",
        "Selmodule",
        "Service",
        "Ssh_authorized_key",
        "Stage",
        "Tidy",
        "User",
        "Vcsrepo",
        "Yumrepo",
        "Zfs",
        "Zone",
        "Zpool",
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
    """Return the servers among resources: those of type `Server`.

    Raises:
        InvalidInputError: There are more than `MAX_SERVERS`, or an address or a port is invalid.
    """
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
    """Return the proposed lines, grouped by type.

    Args:
        me: This node, whose own exports need no line.
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
