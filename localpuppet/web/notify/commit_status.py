"""Commit statuses: beside the commit of a release, a git host shows on which nodes the release is.

- The commit comes from the record of a release that this machine has staged and verified.
- A status is a state: it is sent when it differs from the one that the git host took last, and the
  newest one replaces all before it. Each commit has a pause between two statuses, which grows,
  because GitHub takes 1,000 statuses for a commit and context.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from localpuppet.base.formats.text import shortened
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.presence import TAGS, tag_order
from localpuppet.node.releases.release_records import StagedRecords, StagedRelease, Verifications
from localpuppet.web.notify.channels import Channel, ChannelError, refuse_answer
from localpuppet.web.notify.routing import ChannelType

if TYPE_CHECKING:
    from localpuppet.base.machine.sqlite import Connection
    from localpuppet.node.releases.source import ReleaseSource
    from localpuppet.web.notify.notice_ledger import SentStatus
    from localpuppet.web.notify.routing import Route

# Seconds between two statuses of a commit at first, and at most. Each hundred doubles them.
PAUSE, DOUBLES_AFTER, LONGEST = 60.0, 100, 86400.0
# What GitLab answers if the state stays what it is.
_SAME_STATE = b"Cannot transition status"


class StatusState(StrEnum):
    """How a release fares."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILURE = "failure"


class CommitStatus(Value):
    """The status of a commit; `on` is the number of nodes that its release is on."""

    commit: str
    release: str
    state: StatusState
    description: str
    on: int

    @property
    def shown(self) -> str:
        """Return what a git host shows of it."""
        return f"{self.state}: {self.description}"


class NodeRelease(Value):
    """The release that a node ran last, by name and digest, and whether that run failed."""

    node: str
    release: str
    digest: str
    fails: bool


class StatusApi(Value):
    """The interface of a git host for statuses.

    `token` is the header with the token, `label` the field that says who sends a status, `failure`
    the host's word for one, and `limit` the most characters of a description.
    """

    token: tuple[str, str]
    api_url: str = ""
    path: str = "/repos/{repository}/statuses/{commit}"
    label: str = "context"
    failure: str = "failure"
    limit: int = 255


STATUS_APIS: Mapping[ChannelType, StatusApi] = {
    ChannelType.GITHUB: StatusApi(
        api_url="https://api.github.com", token=("Authorization", "Bearer {}"), limit=140
    ),
    ChannelType.GITLAB: StatusApi(
        api_url="https://gitlab.com/api/v4",
        path="/projects/{project}/statuses/{commit}",
        token=("PRIVATE-TOKEN", "{}"),
        label="name",
        failure="failed",
    ),
    ChannelType.GITEA: StatusApi(token=("Authorization", "token {}")),
}


@dataclass(frozen=True, slots=True)
class StatusSender:
    """Sends statuses to one git host; by the fleet's name, those of several fleets differ."""

    channel: Channel
    fleet: str
    dashboard: str

    @property
    def label(self) -> str:
        """Return what the statuses stand under."""
        return f"localpuppet/{self.fleet}"

    def send(self, status: CommitStatus, *, part: str = "") -> None:
        """Send a status; it waits for the network, so it needs a thread.

        Args:
            part: Added to the label.

        Raises:
            ChannelError: The git host did not take it.
        """
        settings = self.channel.settings
        api = STATUS_APIS[settings.type]
        header, form = api.token
        headers = {header: form.format(self.channel.secret("token_file"))}
        failed = status.state is StatusState.FAILURE
        body = {
            "state": api.failure if failed else str(status.state),
            "description": shortened(status.description, api.limit),
            api.label: self.label + part,
        }
        if self.dashboard:
            page = f"/releases?name={quote(status.release, safe='')}"
            body["target_url"] = self.dashboard.rstrip("/") + page
        path = api.path.format(
            repository=settings.repository,
            project=quote(settings.repository, safe=""),
            commit=status.commit,
        )
        url = (settings.api_url or api.api_url).rstrip("/") + path
        code, answer = self.channel.exchange(url, json.dumps(body).encode(), headers)
        if code != 400 or _SAME_STATE not in answer:
            refuse_answer(code)

    def test(self, releases: Sequence[StagedRelease]) -> str:
        """Send a test status to the newest of some releases; return what was sent.

        Raises:
            ChannelError: There is no release, or as `send`.
        """
        if not releases:
            source = self.channel.settings.source
            raise ChannelError(f"no verified release of {source} is staged on this machine")
        newest = max(releases, key=lambda one: tag_order(one.release))
        status = CommitStatus(
            commit=newest.pin.commit,
            release=newest.release,
            state=StatusState.SUCCESS,
            description="this is a test message",
            on=0,
        )
        self.send(status, part="/test")
        return f"a test status {self.label}/test for {newest.release}, commit {newest.pin.short}"


def verified_releases(
    state: Path, sources: "Mapping[str, ReleaseSource]", *, source: str
) -> list[StagedRelease]:
    """Return the releases of a source that this machine has staged and verified."""
    rules, verified = sources[source], Verifications(state)
    return [
        one
        for one in StagedRecords(state).all()
        if one.release.source == source and verified.accepts(rules, one.pin)
    ]


def nodes_of_source(connection: "Connection", source: str) -> list[NodeRelease]:
    """Return the nodes whose last run was a release of a source."""
    tags = source + TAGS
    rows = connection.execute(
        "SELECT node, release, digest, failure_cause != '' FROM nodes"
        " WHERE finished_at IS NOT NULL AND substr(release, 1, length(?1)) = ?1 ORDER BY node",
        (tags,),
    )
    return [
        NodeRelease(node=node, release=release, digest=digest, fails=bool(fails))
        for node, release, digest, fails in rows
    ]


def statuses_of(
    releases: Iterable[StagedRelease], nodes: Iterable[NodeRelease], route: "Route"
) -> list[CommitStatus]:
    """Return the statuses of the commits of releases of one source.

    A node is on a release if it ran the same bytes. A commit with several tags shows the newest
    that is on nodes.
    """
    known = [one for one in nodes if route.nodes is None or one.node in route.nodes]
    newest = max((tag_order(one.release) for one in known), default=[])
    found: dict[str, CommitStatus] = {}
    for release in sorted(releases, key=lambda one: tag_order(one.release)):
        name, commit = str(release.release), release.pin.commit
        digests = ("", release.composition)
        here = [one for one in known if one.release == name and one.digest in digests]
        if not here and commit in found:
            continue
        failed = [one.node for one in here if one.fails]
        description = f"on {len(here):,} of {len(known):,} nodes"
        state = StatusState.PENDING if tag_order(name) >= newest else StatusState.SUCCESS
        if failed:
            more = f" and {len(failed) - 1:,} more" if failed[1:] else ""
            state, description = StatusState.FAILURE, f"failed on {failed[0]}{more}"
        elif len(here) == len(known):
            state = StatusState.SUCCESS
        found[commit] = CommitStatus(
            commit=commit, release=name, state=state, description=description, on=len(here)
        )
    return [*found.values()]


def due(
    statuses: Iterable[CommitStatus], sent: "Mapping[str, SentStatus]", *, now: float
) -> list[CommitStatus]:
    """Return the statuses to send now; `sent` are the last ones by commit.

    A release that no node has run yet has none.
    """
    chosen = []
    for status in statuses:
        last = sent.get(status.commit)
        if last is None:
            if status.on:
                chosen.append(status)
            continue
        pause = min(LONGEST, PAUSE * 2.0 ** min(last.taken // DOUBLES_AFTER, 20))
        if (last.shown != status.shown or last.problem) and not 0 <= now - last.at < pause:
            chosen.append(status)
    return chosen
