"""Finds what a few characters may mean: nodes, runs, releases, roles, classes, rollouts, callers.

- A text matches a part of a name in any case, and the beginning of the id of a run or a rollout.
- `KIND:TEXT` searches only that kind: `class:nginx`, `role:web`.
- A text with an operator, such as `os.family=Debian`, is also an expression of the query language.
- One exact match of a name or an id counts as the only one; so does one exact match in a kind. The
  host name of a node and the tag of a release are names, too.

Example: `find("r43", sources).target` is the URL of the only release with that tag, or empty.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from urllib.parse import quote, urlencode

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import RunId
from localpuppet.web.dashboard.lists.rollouts import RolloutRow
from localpuppet.web.dashboard.run_results import RunResult

# Matches of a kind that are shown.
MOST_OF_KIND = 10
MOST_SUGGESTED = 12
# Names that are compared with a text that nothing matches, and the most similar ones.
MOST_COMPARED = 5000
MOST_NEAR = 3
_OPERATOR = re.compile(r"[=~<>\[]")
# Values that the query language reads without quotes.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_:-]*")
_RUN_START = re.compile(r"\d{8}(T[\d.]*(Z(-[0-9a-f]{0,4})?)?)?", re.IGNORECASE)
_FIRST_RUN, _LAST_RUN = "00000101T000000.000000Z-0000", "00000101T235959.999999Z-ffff"
# The tens of hours after which any digit may follow.
_EARLY = ("0", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class FindSources:
    """The names to search.

    Attributes:
        nodes: Node → the result of its last run.
        releases: The releases that nodes ran or that are staged.
        roles: Role → the number of its nodes.
        classes: Class → the number of its nodes.
        rollouts: The rollouts.
        runs: The runs whose id begins with the text, at most one more than `MOST_OF_KIND`.
    """

    nodes: Mapping[str, str] = field(default_factory=dict)
    releases: Collection[str] = ()
    roles: Mapping[str, int] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    rollouts: Sequence[RolloutRow] = ()
    runs: Sequence[RunResult] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A match.

    Attributes:
        name: What matches.
        url: The view of it.
        term: The text that finds only this.
        about: A remark, or empty.
        exact: Whether the text means this match and no other of its kind.
    """

    name: str
    url: str
    term: str
    about: str = ""
    exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HitGroup:
    """The matches of a kind.

    Attributes:
        kind: `node`, `run`, `release`, `role`, `class`, `rollout`, `caller`, `query`.
        title: A heading.
        hits: The first ones, at most `MOST_OF_KIND`.
        total: The number of matches.
        url: The list of all; empty without one.
    """

    kind: str
    title: str
    hits: tuple[Hit, ...]
    total: int
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The matches of a text.

    Attributes:
        groups: The kinds with matches.
        near: Similar names, if nothing matches.
    """

    groups: tuple[HitGroup, ...]
    near: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """The URL of the match that the text means; empty for none or several."""
        hits = [hit for group in self.groups for hit in group.hits]
        exact = [hit for hit in hits if hit.exact] or hits
        return exact[0].url if len(exact) == 1 else ""

    @property
    def suggestions(self) -> list[tuple[str, str]]:
        """The terms of the first matches, each with its kind; a few of each kind first."""
        ranked = [
            (place, group.kind, hit.term)
            for group in self.groups
            for place, hit in enumerate(group.hits)
            if group.kind != "query"
        ]
        ranked.sort(key=lambda one: one[0])
        return [(term, kind) for _, kind, term in ranked[:MOST_SUGGESTED]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """How a kind is searched.

    Attributes:
        title: The heading of its matches.
        hit: Returns URL and remark of a name.
        all: Returns the URL of the list of all matches of a text; empty without one.
        named: Whether its names are unique: a text that is one of them means it.
    """

    title: str
    hit: Callable[[str], tuple[str, str]]
    all: Callable[[str], str] = lambda _: ""
    named: bool = False


def find(text: str, sources: FindSources) -> Findings:
    """Return the matches of a text.

    Args:
        text: The text; not empty.
        sources: The names to search.
    """
    kinds = _kinds(sources)
    only, _, rest = text.partition(":")
    if only in kinds and rest.strip() and not rest.startswith(":"):
        text = rest.strip()
    else:
        only = ""
    names = _names(sources, text)
    groups = [
        _group(kind, kinds[kind], names[kind], text, alone=kind == only)
        for kind in kinds
        if only in ("", kind)
    ]
    if not only and _OPERATOR.search(text):
        groups.append(_query(text))
    found = tuple(group for group in groups if group.total)
    near = () if found else _near(text, names)
    return Findings(groups=found, near=near)


def run_bounds(text: str) -> tuple[RunId, RunId] | None:
    """Return the first and the last possible id of a run that begins with a text, or `None`.

    Args:
        text: At least the eight digits of the date.
    """
    if not _RUN_START.fullmatch(text):
        return None
    begin, size = text[:23].upper() + text[23:].lower(), len(text)
    last = begin + _LAST_RUN[size:]
    if size == len("20261120T1") and begin[-1] in _EARLY:
        last = f"{begin}9{_LAST_RUN[size + 1 :]}"
    try:
        return RunId.parse(begin + _FIRST_RUN[size:]), RunId.parse(last)
    except InvalidInputError:
        return None


def _names(sources: FindSources, text: str) -> dict[str, list[str]]:
    rollouts = [row.id for row in sources.rollouts]
    return {
        "node": sorted(sources.nodes),
        "run": [one.run for one in sources.runs],
        "release": sorted(name for name in sources.releases if name),
        "role": sorted(sources.roles),
        "class": sorted(sources.classes),
        "rollout": [one for one in rollouts if one.lower().startswith(text.lower())],
        "caller": sorted({row.caller for row in sources.rollouts if row.caller}),
    }


def _kinds(sources: FindSources) -> dict[str, _Kind]:
    runs = {one.run: one for one in sources.runs}
    rollouts = {row.id: row for row in sources.rollouts}

    def run(name: str) -> tuple[str, str]:
        one = runs[name]
        return f"/nodes/{quote(one.node)}/runs/{quote(name)}", f"{one.node}, {one.outcome}"

    def rollout(name: str) -> tuple[str, str]:
        row = rollouts[name]
        return f"/rollouts/{quote(name)}", ", ".join(filter(None, (row.state, row.title)))

    def list_(path: str) -> Callable[[str], str]:
        return lambda text: f"{path}?{urlencode({'name': text})}"

    def queried(expression: str, counts: Mapping[str, int]) -> Callable[[str], tuple[str, str]]:
        return lambda name: (
            f"/nodes?{urlencode({'q': expression.format(_quoted(name))})}",
            f"{counts[name]} {'node' if counts[name] == 1 else 'nodes'}",
        )

    return {
        "node": _Kind(
            title="Nodes",
            hit=lambda name: (f"/nodes/{quote(name)}", sources.nodes[name]),
            all=list_("/nodes"),
            named=True,
        ),
        "run": _Kind(title="Runs", hit=run, named=True),
        "release": _Kind(
            title="Releases",
            hit=lambda name: (list_("/releases")(name), ""),
            all=list_("/releases"),
            named=True,
        ),
        "role": _Kind(title="Roles", hit=queried("role={}", sources.roles)),
        "class": _Kind(title="Classes", hit=queried("Class[{}]", sources.classes)),
        "rollout": _Kind(title="Rollouts", hit=rollout, all=list_("/rollouts"), named=True),
        "caller": _Kind(
            title="Callers of rollouts", hit=lambda name: (list_("/rollouts")(name), "")
        ),
    }


def _group(kind: str, how: _Kind, names: Iterable[str], text: str, *, alone: bool) -> HitGroup:
    """Return the matches of one kind, exact ones first, then those that begin with the text."""
    wanted = text.lower()
    found = [name for name in names if wanted in name.lower()]
    exact = {name for name in found if wanted in (name.lower(), _short(name.lower(), kind))}
    found.sort(key=lambda name: (name not in exact, not name.lower().startswith(wanted)))
    hits = []
    for name in found[:MOST_OF_KIND]:
        url, about = how.hit(name)
        sure = name in exact and (how.named or alone)
        term = name if how.named else f"{kind}:{name}"
        hits.append(Hit(name=name, url=url, term=term, about=about, exact=sure))
    return HitGroup(
        kind=kind, title=how.title, hits=tuple(hits), total=len(found), url=how.all(text)
    )


def _short(name: str, kind: str) -> str:
    """Return the host name of a node, the tag of a release, and any other name whole."""
    if kind == "node":
        return name.partition(".")[0]
    return name.rpartition("/")[2] if kind == "release" else name


def _query(text: str) -> HitGroup:
    hit = Hit(name=text, url=f"/nodes?{urlencode({'q': text})}", term=text)
    return HitGroup(kind="query", title="Nodes by an expression", hits=(hit,), total=1)


def _quoted(name: str) -> str:
    """Return a value for the query language; without quotes inside, it cannot end early."""
    return name if _PLAIN.fullmatch(name) else '"{}"'.format(re.sub(r'["\\]', "", name))


def _near(text: str, names: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the most similar names, short or whole; those with the text's first letter first."""
    wanted = text.lower()
    known = {
        form: name
        for kind, found in names.items()
        for name in found
        for form in (name.lower(), _short(name.lower(), kind))
    }
    likely = sorted(known, key=lambda form: form[:1] != wanted[:1])[:MOST_COMPARED]
    close = get_close_matches(wanted, likely, n=MOST_NEAR)
    return tuple(dict.fromkeys(known[form] for form in close))
