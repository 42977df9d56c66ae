"""The failure cause of a run: equal on all nodes, and without secrets, so it may leave the node.

    Could not find class ::nginx::server for web01 (file: /srv/…/site.pp, line: 3) on node web01
    Could not find class … for …

- A word stays only if it is in `vocabulary.WORDS`. Names, numbers, digests, paths, quoted texts and
  all other words are left out: they may be secrets, and they differ between nodes.
- The title of a resource stays only if it is a plain name or path.
- A program's output before its error, and the journal of a service, are ignored: they differ
  between nodes, and the error comes last.
- The place is where Puppet found the error: an error in a defined type counts once, wherever the
  type is used.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from localpuppet.base.formats.text import joined
from localpuppet.node.puppet.vocabulary import WORDS

LEFT_OUT = "…"
# Characters of a message that are read, with a program's output and without, and of what
# is published.
MAX_CHATTER = 65536
MAX_READ = 2000
MAX_ERROR = 200
MAX_PLACE = 120

_WHERE = re.compile(r"\(file: (?P<file>[^()]*?)(?:, line: (?P<line>\d+))?(?:, column: \d+)?\)")
_NODE = re.compile(r" on node \S+$")
_QUOTED = re.compile(r"(?<!\w)(?:'[^']*'|\"[^\"]*\"|`[^`]*`)(?!\w)")
_TOKEN = re.compile(
    r"(?P<before>[(\[]?)(?P<word>.*?)(?P<after>(?:\(\))?[])]?(?:\.{3})?[.,:;?!]?)", re.DOTALL
)
# How Puppet begins to say what it was at; in a defined type it says so again.
_PROLOGUE = re.compile(
    r"\A(?:Evaluation Error: (?:Error while evaluating an? [\w… ]+, )?)+"
    r"|\Achange from … to … failed: "
)
# What Puppet appends when systemd did not start a service.
_JOURNAL = re.compile(r"^journalctl log for .*", re.MULTILINE | re.DOTALL)
# How apt begins a line that says what is wrong; what it prints before that.
_APT_ERROR = "E: "
_APT_CHATTER = re.compile(r"(?<= returned )(\d+: )(?!E: ).*")
_GAPS = re.compile(rf"{LEFT_OUT}[.,:;?!]*(?: {LEFT_OUT}[.,:;?!]*)+")
# Where modules have their code: what is before the module's name differs from node to node.
_IN_MODULE = re.compile(r"(?:.*/)?([^/]+/(?:manifests|functions|types|templates)/.+)", re.DOTALL)
_PLAIN_PLACE = re.compile(r"[\w.+/-]+\Z", re.ASCII)
_REFERENCE = re.compile(
    r"(?P<type>[A-Z]\w*(?:::[A-Z]\w*)*)\[(?P<title>.*)\]\Z", re.ASCII | re.DOTALL
)
_PLAIN_TITLE = re.compile(r"[A-Za-z/][\w.:/-]{0,79}\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCause:
    """A failure cause.

    Attributes:
        error: The message without parts that differ between nodes.
        resource: Type and title of the failed resource, or empty.
        place: File and line of the declaration, `profile/manifests/db.pp:3`; empty if unknown.
    """

    error: str
    resource: str = ""
    place: str = ""

    @classmethod
    def of_message(cls, message: str) -> "FailureCause | None":
        """Return the failure cause in a message of Puppet; `None` for an empty one."""
        if not message.strip():
            return None
        return cls(error=normalized(message), place=_found_at(message[:MAX_READ]))

    @classmethod
    def of_resource(cls, status: Mapping[str, Any], message: str) -> "FailureCause":
        """Return the failure cause of a resource.

        Args:
            status: The resource in Puppet's report.
            message: Puppet's message.
        """
        line = status.get("line")
        return cls(
            error=normalized(message),
            resource=public_reference(str(status.get("resource", ""))),
            place=public_place(str(status.get("file") or ""), str(line) if line else None),
        )

    def to_dict(self) -> dict[str, str]:
        """Return the JSON form."""
        return asdict(self)


def normalized(message: str) -> str:
    """Return a message reduced to the words of Puppet's own messages."""
    relevant = _without_chatter(message[:MAX_CHATTER])
    text = _NODE.sub("", joined(relevant[:MAX_READ]).rstrip())
    text = _QUOTED.sub(LEFT_OUT, _WHERE.sub("", text))
    tokens = [_token(token) for token in text.split()]
    line = _GAPS.sub(LEFT_OUT, " ".join(tokens))
    line = without_prologue(line).strip(" ;:,.")
    return line if len(line) <= MAX_ERROR else f"{line[: MAX_ERROR - 1]}{LEFT_OUT}"


def without_prologue(message: str) -> str:
    """Return a message of Puppet without what Puppet says it was evaluating, once per level."""
    return _PROLOGUE.sub("", message) or message


def _without_chatter(message: str) -> str:
    """Return a message with only the error lines of a program's output."""
    first, *others = _JOURNAL.sub("", message).splitlines() or [""]
    errors = [line.removeprefix(_APT_ERROR) for line in others if line.startswith(_APT_ERROR)]
    if not errors:
        return "\n".join([first, *others])
    begun, cut = _APT_CHATTER.subn(r"\1", first)
    return f"{begun}{'; '.join(errors)}" if cut else "\n".join([first, *errors])


def _found_at(message: str) -> str:
    """Return the innermost of the adjacent places at the end of a message."""
    place = inner = ""
    end = 0
    for match in _WHERE.finditer(message):
        if message[end : match.start()].strip():
            inner = ""
        inner = inner or public_place(match["file"], match["line"])
        place = inner or place
        end = match.end()
    return place


def _token(token: str) -> str:
    match = _TOKEN.fullmatch(token)
    if match is None:
        return LEFT_OUT
    if match["word"].lower() in WORDS:
        return token
    return f"{LEFT_OUT}{match['after'].lstrip('(])')}"


def public_place(file: str, line: str | None) -> str:
    """Return where something is declared; empty if the file has no plain name."""
    inner = _IN_MODULE.fullmatch(file)
    name = inner[1] if inner else file.rpartition("/")[2]
    if not _PLAIN_PLACE.match(name) or len(name) > MAX_PLACE:
        return ""
    return f"{name}:{line}" if line else name


def public_reference(reference: str) -> str:
    """Return a type and title, the title only if it may leave the node; empty for another form."""
    match = _REFERENCE.match(reference)
    if match is None:
        return ""
    title = match["title"] if _PLAIN_TITLE.match(match["title"]) else LEFT_OUT
    return f"{match['type'][:MAX_PLACE]}[{title}]"
