"""The list of releases: the nodes that run them, their results, and what is staged here."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from localpuppet.base.formats.text import url_without_secrets
from localpuppet.fleet.inventory.node_row import TAGS, NodeRow, is_older, tag_order
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.releases.staged import StagedRelease
from localpuppet.web.dashboard.lists.list_query import ListQuery
from localpuppet.web.dashboard.lists.node_standings import NodeStandings, Tally, has_run


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRow:
    """A release.

    Attributes:
        release: Its name; empty for nodes whose last run had none.
        nodes: The nodes whose last run applied it, sorted.
        kinds: Counts of these runs by result.
        digests: Counts of nodes by digest, the most common first.
        wrong_release: The number of nodes with a wrong release.
        last: When the last of these runs ended: seconds since 1970, or `None`.
        tag: The staged tag with its commit, or empty.
        staged: The digest of the staged release, or empty.
        url: Its repository.
        signed: Its signers; empty if no signature is required.
        subject: The first line of its tag message; empty if not requested.
        previous: The staged release before it, or empty.
        has_older: Whether nodes ran an older tag of its source last.
    """

    release: str
    nodes: tuple[str, ...]
    kinds: tuple[tuple[Kind, int], ...]
    digests: tuple[tuple[str, int], ...]
    wrong_release: int
    last: float | None
    tag: str
    staged: str
    url: str
    signed: str = ""
    subject: str = ""
    previous: str = ""
    has_older: bool = False

    @property
    def bad(self) -> int:
        """Return the number of failed runs."""
        return sum(count for kind, count in self.kinds if kind.bad)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseListContext:
    """The sources of a list of releases, besides the nodes.

    Attributes:
        names: The nodes that the expression finds; `None` for all.
        staged: The staged releases of this machine.
        signed: The signers of each.
        previous: The staged release before each.
    """

    names: Collection[str] | None
    staged: Iterable[StagedRelease]
    signed: Mapping[str, str] = field(default_factory=dict)
    previous: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInUse:
    """The tags of a source that nodes ran last.

    Attributes:
        newest: The release with the newest tag; each node with another one is behind.
        nodes: The number of nodes that ran it last.
        failed: The number of them on which it failed.
        behind: The nodes of each other release with the end of its last run, newest tag first.
    """

    newest: str
    nodes: int
    failed: int
    behind: Sequence[tuple[str, Sequence[str], float | None]]

    @property
    def late_nodes(self) -> int:
        """Return the number of nodes that are behind."""
        return sum(len(nodes) for _, nodes, _ in self.behind)


def sources_in_use(standing: NodeStandings, names: Collection[str] | None) -> list[SourceInUse]:
    """Return the sources whose tags nodes ran last, those with most nodes behind first.

    Args:
        standing: All nodes.
        names: Only these nodes; `None` for all.
    """
    tallies = standing.tallies if names is None else _tallies(standing.some(names))
    sources: dict[str, list[str]] = {}
    for release in tallies:
        if TAGS in release:
            sources.setdefault(_source(release), []).append(release)
    in_use = []
    for releases in sources.values():
        newest, *older = sorted(releases, key=tag_order, reverse=True)
        behind = [(item, tallies[item].nodes, tallies[item].last) for item in older]
        tally = tallies[newest]
        failed = sum(count for kind, count in tally.kinds.items() if kind.bad)
        in_use.append(
            SourceInUse(newest=newest, nodes=len(tally.nodes), failed=failed, behind=behind)
        )
    return sorted(in_use, key=lambda item: (-item.late_nodes, item.newest))


def releases(
    standing: NodeStandings, asked: ListQuery, ground: ReleaseListContext
) -> list[ReleaseRow]:
    """Return releases in order: those that nodes run, and those staged on this machine.

    Args:
        standing: All nodes.
        asked: The request; its `name` is a part of a release's name.
        ground: The other sources.
    """
    tallies = standing.tallies if ground.names is None else _tallies(standing.some(ground.names))
    odd = Counter(standing.rows[name].release for name in _odd(standing, ground.names))
    oldest = {
        _source(release): release
        for release in sorted(standing.tallies, key=tag_order, reverse=True)
    }
    here = {str(staged.release): staged for staged in ground.staged}
    apps = tallies.keys() | (here.keys() if ground.names is None else set())
    rows = [
        _release(app, tallies.get(app, Tally()), here.get(app), odd[app])
        for app in apps
        if asked.name in app.lower()
    ]
    rows = [
        replace(
            row,
            signed=ground.signed.get(row.release, ""),
            previous=ground.previous.get(row.release, ""),
            has_older=is_older(oldest.get(_source(row.release), ""), row.release),
        )
        for row in rows
    ]
    rows.sort(key=lambda row: row.release)
    rows.sort(key=lambda row: _key(row, asked.sort), reverse=asked.down)
    return rows


def staged_row(staged: StagedRelease, signed: str, subject: str) -> ReleaseRow:
    """Return the row of a staged release, without its nodes.

    Args:
        staged: The release.
        signed: Its signers.
        subject: The first line of its tag message.
    """
    row = _release(str(staged.release), Tally(), staged, 0)
    return replace(row, signed=signed, subject=subject)


def _tallies(rows: Iterable[NodeRow]) -> Mapping[str, Tally]:
    tallies: dict[str, Tally] = {}
    for row in rows:
        if has_run(row):
            tallies.setdefault(row.release, Tally()).add(row)
    return tallies


def _odd(standing: NodeStandings, names: Collection[str] | None) -> Iterable[str]:
    odd = standing.wrong_releases().keys()
    return odd if names is None else odd & names


def _source(release: str) -> str:
    return release.partition(TAGS)[0]


def _release(app: str, tally: Tally, staged: StagedRelease | None, odd: int) -> ReleaseRow:
    kinds = tally.kinds
    return ReleaseRow(
        release=app,
        nodes=tuple(tally.nodes),
        kinds=tuple((kind, kinds[kind]) for kind in Kind if kinds[kind]),
        digests=tuple(sorted(tally.digests.items(), key=lambda count: (-count[1], count[0]))),
        wrong_release=odd,
        last=tally.last,
        tag="" if staged is None else f"{staged.pin.tag} {staged.pin.short}",
        staged="" if staged is None else staged.composition,
        url="" if staged is None else url_without_secrets(str(staged.pin.url)),
    )


def _key(row: ReleaseRow, order: str) -> float | str:
    keys: Mapping[str, float | str] = {
        "release": row.release,
        "nodes": len(row.nodes),
        "bad": row.bad,
        "last": row.last or 0.0,
    }
    return keys[order]
