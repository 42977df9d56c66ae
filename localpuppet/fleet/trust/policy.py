"""Policy of the actions that callers may request, and the common format of policy files.

    policy default deny
    allow	choria=alice choria=web01.example.com	runonce status	*	*

- A line that cannot be parsed rejects the whole file, and so does a rule that can never match.
- Facts and classes never authorise an action, as the sending node chooses them.
- Actions outside `ANY_ACTION` must be named in a rule: neither `*` nor `policy default allow`
  includes them. In a deny rule, `*` matches every action.
- `deploy:shop/tags/r*` allows deploying the releases of that source whose tags match; `*` matches
  any characters of a tag.
- Separate actions are `values` (layers and class parameters in a deployment), `older` (a release
  older than the node's current one) and `takeover` (to command another person's rollout).

Without a file, every action is denied. A file that other users can write to is rejected.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.formats.names import NodeName, ReleasePath, SignerName, check_known
from localpuppet.base.machine.files import is_file, read_user_file, refuse_foreign
from localpuppet.base.value import Value

MAX_POLICY = 256 * 1024
ANY = "*"

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

Found = TypeVar("Found")


def parse_lines(data: bytes, parse: Callable[[str, int], Found], *, where: str) -> Iterator[Found]:
    """Yield the parsed lines, without empty lines and comments.

    `parse` gets a line without trailing white space, and its number, from 1.
    """
    if len(data) > MAX_POLICY:
        raise InvalidInputError(f"the policy is larger than {MAX_POLICY} bytes", where=where)
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InvalidInputError("the policy is not UTF-8", where=where) from error
    for number, line in enumerate(lines, 1):
        with errors_at(f"{where}: line {number}"):
            if _CONTROL.search(line):
                raise InvalidInputError(
                    "the policy has a control character", hint="end lines with a newline only"
                )
            stripped = line.rstrip(" \t")
            if stripped and not stripped.startswith("#"):
                yield parse(stripped, number)


class Signers(Value):
    """The signers that a line matches: names and `*.SUFFIX`, or all."""

    names: frozenset[str] | None

    @classmethod
    def parse(cls, words: Iterable[str] | None) -> "Signers":
        """Return the signers in a column; raise `InvalidInputError` for other patterns."""
        return cls(names=None if words is None else frozenset(map(_signer, words)))

    def include(self, signer: str) -> bool:
        """Return whether the line matches a signer."""
        if self.names is None or signer in self.names:
            return True
        labels = signer.split(".")
        return any(f"*.{'.'.join(labels[n:])}" in self.names for n in range(1, len(labels)))


def columns(line: str) -> list[str]:
    return re.split("\t+", line)


def words(column: str) -> list[str] | None:
    """Return the words of a column, separated by single spaces; `None` for `*`."""
    if column == ANY:
        return None
    parts = column.split(" ")
    if "" in parts:
        raise InvalidInputError("a column has repeated spaces", hint="write one space")
    if ANY in parts:
        raise InvalidInputError("a column with '*' has other words")
    return parts


def _signer(word: str) -> str:
    name = word.removeprefix("*.")
    if ANY in name:
        raise InvalidInputError(
            f"the signer {word[:60]!r} is a pattern",
            hint="write NAME, or *.SUFFIX for all names below",
        )
    SignerName.parse(name)
    return word


# The actions that `*` includes: new actions of an upgrade grant no rights.
ANY_ACTION = ("disable", "enable", "last_run_summary", "runonce", "status", "trigger")
# Requests that a rule must name; deployments also name a release.
_NAMED = ("capture", "catalog", "compile", "log", "report")
DEPLOY, TAKEOVER = "deploy", "takeover"
REQUESTS = tuple(sorted({*ANY_ACTION, *_NAMED, "deploy"} - {"trigger"}))
ACTIONS = (*ANY_ACTION, *sorted((*_NAMED, "forget", "older", "react", TAKEOVER, "values")))
# Prefix of a release in a rule and in an action passed to `decide`.
DEPLOYS = f"{DEPLOY}:"

_DEFAULT = re.compile(r"policy[ \t]+default[ \t]+(allow|deny)")
_COLUMNS = "allow|deny, callers, actions, facts, classes"


class PolicyDecision(Value):
    """Whether a caller may perform an action; the reason names the line, for replies and logs."""

    allowed: bool
    reason: str


class Rule(Value):
    """A rule of the policy file, for exact caller ids, and for releases such as `shop/tags/r*`.

    Without actions, it means `ANY_ACTION` if it allows, and every action if it denies.
    """

    line: int
    allow: bool
    callers: frozenset[str] | None
    actions: frozenset[str] | None
    releases: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The words of its column of actions."""
        named = [ANY] if self.actions is None else sorted(self.actions)
        return [*named, *(f"{DEPLOYS}{release}" for release in self.releases)]

    def matches(self, caller: str, action: str) -> bool:
        return (self.callers is None or caller in self.callers) and self.means(action)

    def means(self, action: str) -> bool:
        """Return whether the rule covers this action, including a `deploy:` action."""
        if self.actions is None:
            return not self.allow or action in ANY_ACTION
        if action.startswith(DEPLOYS):
            release = action.removeprefix(DEPLOYS)
            return any(_fits(release, pattern) for pattern in self.releases)
        return action in self.actions


class Policy(Value):
    """A policy file: the first rule that matches decides, else `allow`."""

    allow: bool
    default_line: int
    rules: tuple[Rule, ...]

    def may_allow(self, action: str) -> bool:
        return (self.allow and action in ANY_ACTION) or any(
            rule.allow and rule.means(action) for rule in self.rules
        )

    @classmethod
    def parse(cls, data: bytes, *, where: str) -> "Policy":
        """Return the policy in a file's bytes."""
        defaults: list[tuple[int, bool]] = []
        rules = []
        for line in parse_lines(data, _parse_line, where=where):
            if isinstance(line, Rule):
                rules.append(line)
            else:
                defaults.append(line)
        if len(defaults) != 1:
            what = "has no default" if not defaults else "has more than one default"
            raise InvalidInputError(
                f"the policy {what}", where=where, hint="write one line 'policy default deny'"
            )
        return cls(allow=defaults[0][1], default_line=defaults[0][0], rules=tuple(rules))


def _parse_line(line: str, number: int) -> Rule | tuple[int, bool]:
    """Return the rule, or the number of the default line and whether it allows."""
    default = _DEFAULT.fullmatch(line)
    if default:
        return number, default.group(1) == "allow"
    fields = columns(line)
    if len(fields) != 5 or fields[0] not in ("allow", "deny"):
        raise InvalidInputError(
            "is not a line of a policy",
            hint=f"write five tab-separated columns: {_COLUMNS}; or 'policy default deny'",
        )
    verdict, callers, actions, facts, classes = fields
    for name, column in (("facts", facts), ("classes", classes)):
        if column != ANY:
            raise InvalidInputError(
                f"the column {name} is {column[:40]!r}",
                hint=f"only '*' is allowed: {name} cannot authorise anything",
            )
    named = words(actions)
    releases = tuple(word for word in named or () if word.startswith(DEPLOYS))
    for word in named or ():
        _check_action(word)
    return Rule(
        line=number,
        allow=verdict == "allow",
        callers=_words(callers, _check_caller),
        actions=None if named is None else frozenset({*named} - {*releases}),
        releases=tuple(word.removeprefix(DEPLOYS) for word in releases),
    )


def _words(column: str, check: Callable[[str], None]) -> frozenset[str] | None:
    listed = words(column)
    for word in listed or ():
        check(word)
    return None if listed is None else frozenset(listed)


def _check_caller(word: str) -> None:
    if word.startswith("/") or ANY in word:
        raise InvalidInputError(
            f"the caller {word[:60]!r} is a pattern", hint="write the complete caller id"
        )
    SignerName.parse_caller(word)


def _check_action(word: str) -> None:
    if word == DEPLOY:
        raise InvalidInputError(
            "the action 'deploy' names no release", hint="write deploy:SOURCE/tags/PATTERN"
        )
    if word.startswith(DEPLOYS):
        _check_pattern(word.removeprefix(DEPLOYS))
    else:
        check_known(word, ACTIONS, f"the action {word[:60]!r} is unknown")


def _check_pattern(pattern: str) -> None:
    source, _, _ = pattern.rpartition("/tags/")
    # Replace each '*' with any text to check whether the pattern could match a release.
    example = ReleasePath.parse(pattern.replace(ANY, "x"), where=DEPLOY)
    if ANY in source or not example.is_tag:
        raise InvalidInputError(
            f"{pattern[:60]!r} is not a source with a pattern of its tags",
            hint="write deploy:SOURCE/tags/PATTERN; '*' matches any part of a tag",
        )


def _fits(release: str, pattern: str) -> bool:
    """Return whether a release matches a pattern.

    A regular expression would take time exponential in the number of '*'.
    """
    # A '*' matches part of a tag, and a tag contains no '/'.
    if release.count("/") != pattern.count("/"):
        return False
    first, *rest = pattern.split(ANY)
    if not rest:
        return release == pattern
    *middle, last = rest
    place, end = len(first), len(release) - len(last)
    for part in middle:
        position = release.find(part, place, end)
        if position < 0:
            return False
        place = position + len(part)
    return place <= end and release.startswith(first) and release.endswith(last)


def decide(policy: Policy | None, caller: str, action: str) -> PolicyDecision:
    """Return whether a caller, `choria=alice`, may do one of `ACTIONS`, or `deploy:RELEASE`."""
    if policy is None:
        return PolicyDecision(
            allowed=False,
            reason="denied: this node has no policy ('localpuppet policy allow NAME ACTION' there"
            " makes one)",
        )
    for rule in policy.rules:
        if rule.matches(caller, action):
            return _decision(rule.allow, f"line {rule.line}", caller, action)
    allow = policy.allow and action in ANY_ACTION
    name = caller.removeprefix("choria=")
    cure = "" if allow else f" ('localpuppet policy allow {name} {action}' there allows it)"
    return _decision(allow, f"line {policy.default_line} (default)", caller, action, cure=cure)


def _decision(
    allow: bool, line: str, caller: str, action: str, *, cure: str = ""
) -> PolicyDecision:
    reason = f"{'allowed' if allow else 'denied'} by policy {line}: {caller} {action}{cure}"
    return PolicyDecision(allowed=allow, reason=reason)


Parsed = TypeVar("Parsed")


def read_policy_file(path: Path, parse: Callable[..., Parsed]) -> Parsed | None:
    """Return what `parse` makes of a policy file; `None` if there is no file.

    Raises:
        InvalidInputError: The file is invalid, or other users can write to it or its directory.
    """
    if not is_file(path):
        return None
    refuse_foreign(path.parent)
    policy: Parsed = _parsed(parse, read_user_file(path, limit=MAX_POLICY), str(path))
    return policy


# The files seldom change.
@lru_cache(maxsize=4)
def _parsed(parse: Callable[..., Any], data: bytes, where: str) -> Any:  # noqa: ANN401 - `Parsed`
    return parse(data, where=where)


def read_policy(path: Path) -> Policy | None:
    """Return the policy of a node; `None` if there is no file, which denies everything."""
    return read_policy_file(path, Policy.parse)


def refusal(path: Path, caller: SignerName, action: str) -> str:
    """Return why the policy denies an action to a caller; empty if it allows it."""
    decision = decide(read_policy(path), caller.caller, action)
    return "" if decision.allowed else decision.reason


def peer_refusal(path: Path, peer: NodeName, action: str) -> str | None:
    """Return why another node may not `trigger` or `react` this node; `None` if it may.

    Without a policy, every node with a trusted key may, as its key was trusted for that. Requests
    differ: without a policy, they are denied (`requests.request`).
    """
    try:
        policy = read_policy(path)
    except LocalpuppetError as error:
        return str(error)
    if policy is None:
        return None
    decision = decide(policy, SignerName(peer).caller, action)
    return None if decision.allowed else decision.reason
