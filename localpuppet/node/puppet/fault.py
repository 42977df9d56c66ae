"""The failure cause of a run: equal on all nodes, and without secrets, so it may leave the node.

    Could not find class ::nginx::server for web01 (file: /srv/…/site.pp, line: 3) on node web01
    Could not find class … for …

- A word stays only if it is in `WORDS`. Names, numbers, digests, paths, quoted texts and
  all other words are left out: they may be secrets, and they differ between nodes.
- A name stays if the message is one of `_FORMS`, which have names of classes, functions, variables,
  templates, types and parameters, and if the manifest at the place of the error has it as code, or
  as a literal where Puppet expects a name. So no value can pass as a name: an interpolated text and
  what a string, a comment or a heredoc contains are no code.
- Two messages lack that place: the key of a failed `lookup` stays if a manifest of the release has
  the call with this literal, and the name of a class if the ENC has it.
- The title of a resource stays only if it is a plain name or path.
- A program's output before its error, and the journal of a service, are ignored: they differ
  between nodes, and the error comes last.
- The place is where Puppet found the error: an error in a defined type counts once, wherever the
  type is used.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.text import joined
from localpuppet.base.machine.files import read_user_file

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
_NO_DIRECTORIES: Mapping[str, str] = MappingProxyType({})
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


# Messages that have names, and where. A reference is a resource; a code is an exit code.
_FORMS = re.compile(
    r"Could not find class ((?:::)?\w[\w:]*)(?= for )|find a value for the name ('\w[\w:.-]*')"
    r"|Unknown (?:function|variable|resource type): ('[\w:]+')"
    r"|Resource type not found: ([\w:]+)|Could not find template ('[\w./-]+')"
    r"|Cannot reassign variable ('\$[\w:]+')|parameter(?: named)? ('\w+')"
    r"|source\(s\) (puppet:///modules/[\w./-]+)|Operator (?P<sign>'[^\w\s']{1,3}')"
    r"|returned (?P<code>\d{1,3} instead of one of \[\d{1,3}(?:, \d{1,3})*\])"
    r"|(?<![\w'\"])(?P<reference>'?[A-Z]\w*(?:::[A-Z]\w*)*\[[\w.:/-]+\]'?)(?=[\s,:;]|$)",
    re.ASCII,
)
# What Puppet says of a lookup; a place after it is of the class that has it included.
_LOOKUP = re.compile(r"Function lookup\(\) did not find a value for the name '(\w[\w:.-]*)'")
_CLASS = re.compile(r"class\[(\w+)((?:::\w+)*)\]")
_KEPT = re.compile(r"\0(\d+)\0([.,:;?!]*)")
MAX_CODE = 1024 * 1024
# Manifests of a release that are searched for the key of a lookup.
MAX_MANIFESTS = 10_000
# The parts of a manifest; a comment and a regular expression may contain a quote. What has no end
# is the last part: each character is looked at a limited number of times.
_PARTS = re.compile(
    r"""(?P<none>\#[^\n]*|/\*.*?\*/|(?:(?<=[~{,(])|^)\s{0,40}/(?:\\.|[^/\\\n])+/)
    |'(?P<plain>(?:\\.|[^'\\])*)'|"(?P<double>(?:\\.|[^"\\])*)"|(?P<open>(?:/\*|'|").*)
    |(?P<name>[\w:]+)|(?P<sign>\S)
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE | re.ASCII,
)
_INTERPOLATED = re.compile(r"(?<!\\)\$\{?([\w:]+)")
# What precedes a literal that is a name, and the title of a resource.
_BEFORE_NAME = re.compile(
    r"(?:\A| )(?:include|contain|require|class {|(?:template|epp|lookup|hiera(?:_\w+)?) \("
    r"|source = >|[A-Z][\w:]* \[)"
    r"(?: \()?\Z"
)
_COLON = re.compile(r"\s*:")
_BEFORE_TITLE = re.compile(r"(?:\A|[^$] )[\w:]+ {\Z")


def names_of_code(code: str) -> frozenset[str]:
    """Return the names in a manifest: words outside of strings, and literals in place of a name.

    A manifest with a heredoc has none, because a heredoc may contain anything.
    """
    names, before = set[str](), list[str]()
    for part in () if "@(" in code else _PARTS.finditer(code):
        text = part["plain"] if part["plain"] is not None else part["double"]
        if text is not None:
            names.update(_INTERPOLATED.findall(part["double"] or ""))
            shape, title = " ".join(before[-3:]), _COLON.match(code, part.end())
            if "$" not in text and (_BEFORE_NAME if not title else _BEFORE_TITLE).search(shape):
                names.add(text)
            before.append("")
        elif not part["none"] and not part["open"]:
            # A bare word after `=` is a value, unless it is called.
            is_value = (
                before[-1:] in (["="], [">"]) and code[part.end() : part.end() + 1] not in "(["
            )
            names.add("" if is_value else part["name"] or "")
            before.append(part[0])
    return frozenset(name.removeprefix("::") for name in names)


def _names_at(file: str, directories: Mapping[str, str]) -> frozenset[str]:
    """Return the names of a manifest on this machine; none if it cannot be read."""
    paths = [file] if file.startswith("/") else []
    paths += [
        f"{directory}/{file.removeprefix(start)}"
        for directory, start in directories.items()
        if file.startswith(start) and not paths
    ]
    for path in paths if file.endswith(".pp") else ():
        try:
            return names_of_code(read_user_file(Path(path), limit=MAX_CODE).decode())
        except (InvalidInputError, UnicodeDecodeError):
            continue
    return frozenset()


def _is_looked_up(key: str, directories: Mapping[str, str]) -> bool:
    """Return whether a manifest of a release looks up a key as a literal."""
    call = re.compile(rf"\b(?:lookup|hiera(?:_\w+)?)\s*\(\s*['\"]{re.escape(key)}['\"]")
    for directory in directories:
        for path in islice(Path(directory).rglob("*.pp"), MAX_MANIFESTS):
            with suppress(InvalidInputError, UnicodeDecodeError):
                code = read_user_file(path, limit=MAX_CODE).decode()
                if call.search(code) and key in names_of_code(code):
                    return True
    return False


def _with_names(
    text: str, file: str, directories: Mapping[str, str], classes: Collection[str]
) -> tuple[str, Sequence[str]]:
    """Return a message with a mark for each name that may stay, and these names."""
    kept: list[str] = []
    names = {*_names_at(file, directories), *(() if file else classes)}
    looked_up = _LOOKUP.fullmatch(without_prologue(text).strip())
    if looked_up and _is_looked_up(looked_up[1], directories):
        names.add(looked_up[1])
    for module, rest in _CLASS.findall(text.lower()):  # its parameters are in its own manifest
        modules = file.partition("/manifests/")[0].rpartition("/")[0]
        inner = f"{module}/manifests{rest.replace('::', '/') or '/init'}.pp"
        starts = {modules and f"{modules}/"}
        if not file:  # an ENC names the class
            starts |= {"modules/", *(at.removesuffix(f"{module}/") for at in directories.values())}
        for start in starts:
            names |= _names_at(f"{start}{inner}", directories)

    def mark(match: re.Match[str]) -> str:
        word, (start, end) = match[match.lastindex or 0], match.span(match.lastindex or 0)
        if match.lastgroup == "reference":
            word = _known_reference(word, names)
        elif match.lastgroup is None and word.strip("'$").removeprefix("::") not in names:
            word = ""
        if not word:
            return match[0]
        kept.append(word)
        return f"{text[match.start() : start]}\0{len(kept) - 1}\0{text[end : match.end()]}"

    text = text.replace("\0", "")
    return _FORMS.sub(mark, text), kept


def _known_reference(reference: str, names: Collection[str]) -> str:
    """Return a resource with only what is in a manifest; empty if its type is not."""
    kind, _, title = reference.strip("']").partition("[")
    if kind == "Class":
        return reference if title.lower().removeprefix("::") in names else ""
    if kind.lower() not in map(str.lower, names):
        return ""
    return reference if title in names else f"{kind}[{LEFT_OUT}]"


class FailureCause(JsonRecord):
    """A failure cause.

    Attributes:
        error: The message without parts that differ between nodes.
        place: File and line of the declaration, `profile/manifests/db.pp:3`.
    """

    error: str
    resource: str = ""
    place: str = ""

    @classmethod
    def of_message(
        cls,
        message: str,
        directories: Mapping[str, str] = _NO_DIRECTORIES,
        classes: Collection[str] = (),
    ) -> "FailureCause | None":
        """Return the failure cause in a message of Puppet; `None` for an empty one.

        Args:
            directories: Directories of the release, see `command_line.file_name`.
            classes: The classes of the ENC: names of code, too, in a message without a place.
        """
        if not message.strip():
            return None
        place, file = _found_at(message[:MAX_READ])
        return cls(error=normalized(message, file, directories, classes), place=place)

    @classmethod
    def of_resource(
        cls,
        status: Mapping[str, Any],
        message: str,
        directories: Mapping[str, str] = _NO_DIRECTORIES,
    ) -> "FailureCause":
        line, file = status.get("line"), str(status.get("file") or "")
        return cls(
            error=normalized(message, file, directories),
            resource=public_reference(str(status.get("resource", ""))),
            place=public_place(file, str(line) if line else None),
        )


def normalized(
    message: str,
    file: str = "",
    directories: Mapping[str, str] = _NO_DIRECTORIES,
    classes: Collection[str] = (),
) -> str:
    """Return a message reduced to the words of Puppet's own messages, and names of a manifest.

    Args:
        file: The path of the manifest.
    """
    relevant = _without_chatter(message[:MAX_CHATTER])
    text = _NODE.sub("", joined(relevant[:MAX_READ]).rstrip())
    text, kept = _with_names(_WHERE.sub("", text), file, directories, classes)
    tokens = [_token(token) for token in _QUOTED.sub(LEFT_OUT, text).split()]
    line = _GAPS.sub(LEFT_OUT, " ".join(tokens))
    line = without_prologue(line).replace(":;", ":").strip(" ;:,.")
    line = _KEPT.sub(lambda match: f"{kept[int(match[1])]}{match[2]}", line)
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


def _found_at(message: str) -> tuple[str, str]:
    """Return the innermost of the adjacent places at the end of a message, and its file."""
    place = inner = file = ""
    end = 0
    for match in _WHERE.finditer(message):
        if message[end : match.start()].strip():
            inner = ""
        if not inner and (inner := public_place(match["file"], match["line"])):
            place, file = inner, match["file"]
        end = match.end()
    return place, file


def _token(token: str) -> str:
    match = _TOKEN.fullmatch(token)
    if match is None or _KEPT.fullmatch(token):
        return token if match else LEFT_OUT
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
