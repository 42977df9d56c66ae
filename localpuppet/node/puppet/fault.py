"""The failure cause of a run: equal on all nodes, and without secrets, so it may leave the node.

    Could not find class ::nginx::server for web01 (file: /srv/…/site.pp, line: 3) on node web01
    Could not find class … for …

- A word stays only if it is in `WORDS`. Names, numbers, digests, paths, quoted texts and
  all other words are left out: they may be secrets, and they differ between nodes.
- The title of a resource stays only if it is a plain name or path.
- A program's output before its error, and the journal of a service, are ignored: they differ
  between nodes, and the error comes last.
- The place is where Puppet found the error: an error in a defined type counts once, wherever the
  type is used.
"""

import re
from collections.abc import Mapping
from typing import Any

from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.text import joined

_TEXT = """
    a about absent absolute accept accepts access account acquire action actual add added
    additional address after again aix alias all allow allowed alphanumeric already an and
    another answer any api appears applicable application apply apt archives are argument
    arguments array as assign assignable assignment ast at attempt attempts attribute attributes
    authorized available back backend backup bad base be because been before being between
    binary block boolean both broken building busy but by byte cache cached call callable called
    calling can candidate cannot case catalog certificate certificates change changed changes
    character characters check checker checksum child class classes client code collection comma
    command comparable compare compilation compile compiled compiling component conf config
    configuration conflicts connect connection constant contain containing contains content
    contents context contract control convert converted copying copyright core correct corrupt
    could create created creates creating crls cron current currently custom cycle dangling data
    date declaration declared default defaults define defined definition definitions delete
    deleted denied dependencies dependency depends deprecated destroy detail details detected
    determine device did diff different directly directories directory disable disabled display
    dmgs do docs does doesn download downloaded downloading dpkg dump dumped duplicate either
    empty enable end ensure entries entry enum environment environments epp equality error
    errors evaluate evaluated evaluating evaluation event events example exceeded exceeds
    exception execution exist existing exists exit exiting expected expects expired expression
    extension external face facts failed failure false fault feature fetch few field file
    filebucket files filesystem find fingerprint finish first fix float following for force
    forge form format found from frontend full fully function functional functions generate get
    getting gid given global got group groups handle handling handshake has hash have header
    held help heredoc hiera hierarchy hook host html http i id identifier if ignore ignored
    ignoring illegal implementation in include index indirection info information initialize
    inlining input install installed instance instances instead integer integers interact intern
    internal into invalid is issue issued it iterable iterator its job json key keys killed kind
    large last latest least left legacy length less letter letters level library limit line link
    links list lists load loaded loader loading local locally locate location lock locked log
    logs long lookup lowercase made main manage manifest many mapping mark masked match matches
    matching max may memory merge message metadata method middle migration mismatch missing mode
    modified module modules more mount multiple must name named names need needs negative
    network new nil no node non not notify notrun number numbers numeric object objects occurred
    of oids old on once one only open operation operator option optional options or os other out
    output outside override owner package packages parameter parameters parent parse parser
    parsing part pass passed path paths pattern patterns peer pending per permission permissions
    permitted pipe please postrun_command prefetch preparing prerun_command present print
    private problems proc process produce
    produced production profile property provide provided provider puppet purged qualified
    qualify query quota range read reading reassign received record recurse redacted redeclare
    redefine reference refused regexp registry relationship relative release releases reload
    remote remove removed removing render rendering report reported reports repository request
    requested required requires reserved reset resolution resolve resource resources response
    restart result resulted retrieve returned rights root route rule run running runtime same
    save scalar scope seconds section see segmentation selinux semantic sensitive separated
    serialized server service services set setting settings short should show signal signed
    single size skipping source sources space specification specified specify start starting
    state statement static status still stop stopped store strategy string strings struct
    subcommand submit successfully such suitable support supported supports symbol symbolic
    syntax system systemd takes target task tcp template temporary terminus text than that the
    their them there these this time timed timeout title to too transaction transition tree
    tried true trusted try trying tuple two type types uid unable unacceptable unavailable undef
    undefined unexpected uninstall unique unit unknown unless unmet unreachable unrecognized
    unsupported up update upgrade uri url use used user users using valid validate validation
    value values var variable variables variant verify version versions via waiting was were
    when where whether which while will with without word would write wrong yaml yet you
"""
WORDS = frozenset(_TEXT.split())


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


class FailureCause(JsonRecord):
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
        """
        line = status.get("line")
        return cls(
            error=normalized(message),
            resource=public_reference(str(status.get("resource", ""))),
            place=public_place(str(status.get("file") or ""), str(line) if line else None),
        )


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


def is_public_title(title: str) -> bool:
    """Return whether the title of a resource may leave the node."""
    return _PLAIN_TITLE.match(title) is not None


def public_reference(reference: str) -> str:
    """Return a type and title, the title only if it may leave the node; empty for another form."""
    match = _REFERENCE.match(reference)
    if match is None:
        return ""
    title = match["title"] if is_public_title(match["title"]) else LEFT_OUT
    return f"{match['type'][:MAX_PLACE]}[{title}]"
