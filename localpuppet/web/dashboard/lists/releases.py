"""The list of releases: the nodes that run them, their results, and what is staged here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from localpuppet.base.formats.text import url_without_secrets
from localpuppet.fleet.inventory.node_row import TAGS, is_older, tag_order
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.releases.staged import StagedRelease
from localpuppet.web.dashboard.list_query import ListQuery
from localpuppet.web.dashboard.nodes import Tally


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
    nodes: Sequence[str]
    kinds: Sequence[tuple[Kind, int]]
    digests: Sequence[tuple[str, int]]
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
        staged: The staged releases of this machine.
        signed: The signers of each.
        previous: The staged release before each.
    """

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


def sources_in_use(tallies: Mapping[str, Tally]) -> list[SourceInUse]:
    """Return the sources whose tags nodes ran last, those with most nodes behind first."""
    sources: dict[str, list[str]] = {}
    for release in tallies:
        if TAGS in release:
            sources.setdefault(_source(release), []).append(release)
    in_use = []
    for releases in sources.values():
        newest, *older = sorted(releases, key=tag_order, reverse=True)
        behind = [(item, tallies[item].nodes, tallies[item].last) for item in older]
        tally = tallies[newest]
        failed = sum(count for kind, count in tally.kinds if kind.bad)
        in_use.append(
            SourceInUse(newest=newest, nodes=len(tally.nodes), failed=failed, behind=behind)
        )
    return sorted(in_use, key=lambda item: (-item.late_nodes, item.newest))


def releases(
    asked: ListQuery,
    tallies: Mapping[str, Tally],
    ground: ReleaseListContext,
    *,
    all_: Iterable[str],
) -> list[ReleaseRow]:
    """Return releases in order: those that nodes run, and those staged on this machine.

    Args:
        asked: The request; its `name` is a part of a release's name.
        tallies: The requested nodes by release.
        ground: The other sources.
        all_: The releases of all nodes.
    """
    oldest = {_source(release): release for release in sorted(all_, key=tag_order, reverse=True)}
    here = {str(staged.release): staged for staged in ground.staged}
    rows = [
        replace(
            _release(app, tallies.get(app, Tally()), here.get(app)),
            signed=ground.signed.get(app, ""),
            previous=ground.previous.get(app, ""),
            has_older=is_older(oldest.get(_source(app), ""), app),
        )
        for app in tallies.keys() | (set() if asked.q else here.keys())
        if asked.name in app.lower()
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
    row = _release(str(staged.release), Tally(), staged)
    return replace(row, signed=signed, subject=subject)


def _source(release: str) -> str:
    return release.partition(TAGS)[0]


def _release(app: str, tally: Tally, staged: StagedRelease | None) -> ReleaseRow:
    return ReleaseRow(
        release=app,
        nodes=tally.nodes,
        kinds=tally.kinds,
        digests=tally.digests,
        wrong_release=tally.wrong_release,
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
