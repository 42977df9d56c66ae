"""Whose exported resources a node takes: `policies/collect.policy`.

    # signers        types             title              how
    *.web.example.com    Haproxy::Balancermember    *    guarded
    ca01.example.com    File    /etc/ssl/site/*    as-is

Owns: the grammar of the file, its decision, and the lines that it asks for. Refuses to know: where
the file is, what is in a resource (`choosing`).

- Tags and titles are the exporter's own words: a line is about who signed them.
- The first line that is about signer, type and title decides. `*` stands for all signers and, in a
  title, for any text; a type is always named, since a type is a right.
- Without a file, `Server` alone is taken, of everybody whose key is trusted: it changes nothing.
- What is not understood refuses the whole file.
"""

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.choice import parse_choice
from localpuppet.fleet.exports.guarding import OF_TYPES
from localpuppet.fleet.exports.resource import named_type, parse_title
from localpuppet.fleet.trust.policy_lines import ANY, Signers, columns, parse_lines, words

_COLUMNS = "signers, types, title, guarded or as-is"
# The type of the predecessor, which only says where a server is.
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
    """What of a resource is taken."""

    GUARDED = "guarded"
    AS_IS = "as-is"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectLine:
    """One line.

    Attributes:
        signers: Whom it is about.
        types: The types that it names.
        title: The pattern of titles.
        how: What is taken.
    """

    signers: Signers
    types: frozenset[str]
    title: re.Pattern[str]
    how: CollectMode


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectPolicy:
    """What a node takes.

    Attributes:
        lines: The lines of the file.
    """

    lines: tuple[CollectLine, ...]

    @classmethod
    def parse(cls, data: bytes, *, where: str) -> "CollectPolicy":
        """Return the policy in a file's bytes.

        Args:
            data: UTF-8 text.
            where: The file's name, for messages.

        Raises:
            InvalidInputError: A line is refused, and the file with it.
        """
        return cls(lines=tuple(parse_lines(data, _parse_line, where=where)))

    def names(self, kind: str) -> bool:
        """Return whether a line is about a type."""
        return any(kind in line.types for line in self.lines)

    def types(self, how: CollectMode) -> frozenset[str]:
        """Return the types of the lines of one kind."""
        return frozenset().union(*(line.types for line in self.lines if line.how is how))

    def warnings(self) -> list[str]:
        """Return a sentence for each type whose resources may be code or a right, sorted by type.

        Of guarded lines, also for types of Puppet whose own parameters reach beyond the title.
        """
        whole, guarded = self.types(CollectMode.AS_IS), self.types(CollectMode.GUARDED)
        texts = {
            kind: f"takes {kind} guarded: its title and what guarded keeps of it are the signer's"
            " choice (see docs/guarded.md, and name titles)"
            for kind in guarded & (DANGEROUS | OF_TYPES.keys())
        }
        for kind in whole & DANGEROUS:
            texts[kind] = f"takes {kind} as it is: whoever signs for it has root here"
        return [texts[kind] for kind in sorted(texts)]

    def decide(self, signer: str, kind: str, title: str) -> CollectMode | None:
        """Return how a resource is taken; `None` where no line is about it."""
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
    """Return the line that allows resources, as one writes it into the file."""
    return "\t".join((" ".join(signers), kind, title, how))


def _parse_line(line: str, _number: int) -> CollectLine:
    found = columns(line)
    if len(found) not in (3, 4):
        raise InvalidInputError(
            "is not a line of a policy", hint=f"columns with tabs between them: {_COLUMNS}"
        )
    signers, types = map(words, found[:2])
    if types is None:
        raise InvalidInputError("a type is a right: name it", hint="File Host Concat::Fragment")
    return CollectLine(
        signers=Signers.parse(signers),
        types=frozenset(map(named_type, types)),
        title=re.compile(fnmatch.translate(_literal(parse_title(found[2])))),
        how=parse_choice(
            CollectMode,
            found[3] if len(found) == 4 else CollectMode.GUARDED,
            what="a way to take a resource",
        ),
    )


def _literal(pattern: str) -> str:
    """Return a pattern in which only `*` stands for something else."""
    return re.sub(r"([?\[])", r"[\1]", pattern)
