"""Policy of the exported resources that a node takes: `policies/collect.policy`.

    # signers        types             title              how
    *.web.example.com    Haproxy::Balancermember    *    guarded
    ca01.example.com    File    /etc/ssl/site/*    as-is

- A line matches the node that signed the resource: tags and titles are chosen by the exporter.
- The first line that matches signer, type and title decides. `*` matches all signers and, in a
  title, any text; types are always listed, as each type grants a right.
- Without a file, this node takes `Server` from all trusted nodes, as this type changes nothing.
- A line that cannot be parsed rejects the whole file.
"""

import fnmatch
import re
from collections.abc import Iterable
from enum import StrEnum

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.choice import parse_choice
from localpuppet.base.value import Value
from localpuppet.fleet.exports.resource import OF_TYPES, named_type, parse_title
from localpuppet.fleet.trust.policy_lines import ANY, Signers, columns, parse_lines, words

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
    """A line of the collect policy.

    Attributes:
        signers: The signers that it matches.
        types: The types that it matches.
        title: The pattern that the title must match.
        how: The part of the resource that it takes.
    """

    signers: Signers
    types: frozenset[str]
    title: re.Pattern[str]
    how: CollectMode


class CollectPolicy(Value):
    """The collect policy of a node: the lines of its file, in order."""

    lines: tuple[CollectLine, ...]

    @classmethod
    def parse(cls, data: bytes, *, where: str) -> "CollectPolicy":
        """Return the policy in a file's bytes.

        Args:
            data: UTF-8 text.
            where: The file's name, for messages.

        Raises:
            InvalidInputError: A line is invalid.
        """
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
