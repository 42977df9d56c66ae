"""What forges show beside the commits of releases: real HTTP servers, nodes that are played."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localpuppet.node.releases.release_records import StagedRelease
from localpuppet.web.notify import channels
from localpuppet.web.notify.channels import Channel, ChannelError
from localpuppet.web.notify.notice_ledger import SentStatus
from localpuppet.web.notify.notifier import CHANNEL
from localpuppet.web.notify.routing import ChannelSettings, ChannelType, Route
from tests.web.make import Site, names, staged, status
from tests.web.notify.make import Watch, a_webhook
from tests.web.notify.receivers import Receiver, secret_file

TOKEN = "TOKEN-SECRET"
PENDING, SUCCESS, FAILURE = channels.StatusState


def a_release(tag: str, commit: str = "", composition: str = "d") -> StagedRelease:
    one = staged(f"web/tags/{tag}", composition)
    return replace(one, pin=replace(one.pin, commit=(commit or tag[-1]) * 40))


def on(
    release: str, *nodes: str, digest: str = "d", fails: bool = False
) -> list[channels.NodeRelease]:
    return [
        channels.NodeRelease(node=node, release=f"web/tags/{release}", digest=digest, fails=fails)
        for node in nodes
    ]


def a_forge(directory: Path, kind: ChannelType, url: str, **more: Any) -> ChannelSettings:
    return ChannelSettings(
        type=kind,
        source="web",
        repository="group/web",
        api_url=url,
        token_file=secret_file(directory, "token", TOKEN),
        **more,
    )


@pytest.mark.parametrize(
    ("nodes", "shown"),
    [
        (on("r7", "a"), {"7": "success: on 1 of 1 nodes", "6": "success: on 0 of 1 nodes"}),
        (
            on("r6", "a", "b") + on("r7", "c"),
            {"7": "pending: on 1 of 3 nodes", "6": "success: on 2 of 3 nodes"},
        ),
        (
            on("r7", "b", "c", fails=True) + on("r7", "a"),
            {"7": "failure: failed on b and 1 more", "6": "success: on 0 of 3 nodes"},
        ),
        # A newer release that was rolled back waits; it is not done.
        (on("r6", "a"), {"7": "pending: on 0 of 1 nodes", "6": "success: on 1 of 1 nodes"}),
        # r10 is newer than r7.
        (on("r10", "a") + on("r7", "b"), {"7": "success: on 1 of 2 nodes"}),
        # Other bytes of the release are not its commit.
        (on("r7", "a") + on("r7", "b", digest="x"), {"7": "pending: on 1 of 2 nodes"}),
        # Nodes of which the channel is not told do not count.
        (on("r7", "a", "z"), {"7": "success: on 1 of 1 nodes"}),
        ([], {"7": "success: on 0 of 0 nodes"}),
    ],
)
def test_a_status_says_on_which_nodes_a_release_is(
    nodes: Sequence[channels.NodeRelease], shown: Mapping[str, str]
) -> None:
    channel = ChannelSettings(type=ChannelType.GITHUB, source="web")
    route = Route(name="ci", channel=channel, nodes=frozenset("abc"))
    found = channels.statuses_of([a_release("r7"), a_release("r6")], nodes, route)
    by_commit = {one.commit[0]: one.shown for one in found}
    assert shown.items() <= by_commit.items()


def test_a_commit_with_two_tags_shows_the_one_that_is_on_nodes() -> None:
    both = [a_release("r7", "a"), a_release("r8", "a")]
    route = Route(name="ci", channel=ChannelSettings(type=ChannelType.GITHUB, source="web"))
    for tag in ("r7", "r8"):
        (one,) = channels.statuses_of(both, on(tag, "a"), route)
        assert one.release == f"web/tags/{tag}"


def a_status(description: str = "on 1 of 2 nodes", on: int = 1) -> channels.CommitStatus:
    return channels.CommitStatus(
        commit="7" * 40, release="web/tags/r7", state=PENDING, description=description, on=on
    )


@pytest.mark.parametrize(
    ("last", "now", "is_due"),
    [
        (None, 0.0, True),
        ({}, channels.PAUSE - 1, False),
        ({}, channels.PAUSE, True),
        ({}, -channels.PAUSE, True),  # the clock was set back
        ({"shown": a_status().shown}, channels.PAUSE, False),
        ({"shown": a_status().shown, "problem": "answered 500"}, channels.PAUSE, True),
        ({"taken": channels.DOUBLES_AFTER}, channels.PAUSE, False),
        ({"taken": channels.DOUBLES_AFTER}, 2 * channels.PAUSE, True),
        ({"taken": 10**9}, channels.LONGEST - 1, False),
        ({"taken": 10**9}, channels.LONGEST, True),
    ],
)
def test_a_status_that_changed_is_due_after_a_pause_that_grows(
    last: dict[str, Any] | None, now: float, is_due: bool
) -> None:
    row = {"shown": "pending: other", "problem": "", "at": 0.0, "taken": 1, **(last or {})}
    sent = {} if last is None else {"7" * 40: SentStatus(**row)}
    assert bool(channels.due([a_status()], sent, now=now)) is is_due
    if last is None:
        assert channels.due([a_status(on=0)], sent, now=now) == []


# What each forge's reference says of paths, headers, fields and words.
FORMS = [
    (
        ChannelType.GITHUB,
        f"/repos/group/web/statuses/{'7' * 40}",
        ("authorization", f"Bearer {TOKEN}"),
        ("context", "failure", 140),
    ),
    (
        ChannelType.GITLAB,
        f"/projects/group%2Fweb/statuses/{'7' * 40}",
        ("private-token", TOKEN),
        ("name", "failed", 255),
    ),
    (
        ChannelType.GITEA,
        f"/repos/group/web/statuses/{'7' * 40}",
        ("authorization", f"token {TOKEN}"),
        ("context", "failure", 255),
    ),
]


@pytest.mark.parametrize(("kind", "path", "header", "words"), FORMS)
def test_each_forge_gets_its_form(
    tmp_path: Path,
    kind: ChannelType,
    path: str,
    header: tuple[str, str],
    words: tuple[str, str, int],
) -> None:
    label, failure, limit = words
    failed = replace(a_status("failed on " + "n" * 253), state=FAILURE)
    with Receiver(lambda _: (201, {})) as forge:
        channel = Channel(a_forge(tmp_path, kind, f"{forge.url}/"), tmp_path)
        channels.StatusSender(channel, "production", "https://fleet.example.com/").send(failed)
        channels.StatusSender(channel, "production", "").send(a_status())
    one, other = forge.received
    assert one.path == path
    assert one.headers[header[0]] == header[1]
    assert one.headers["user-agent"].startswith("localpuppet/")  # GitHub requires one
    assert {key: one.json[key] for key in one.json if key != "description"} == {
        "state": failure,
        label: "localpuppet/production",
        "target_url": "https://fleet.example.com/releases?name=web%2Ftags%2Fr7",
    }
    description = one.json["description"]
    assert len(description) <= limit
    assert description.startswith("failed on nnn")
    assert other.json == {
        "state": "pending",
        label: "localpuppet/production",
        "description": "on 1 of 2 nodes",
    }


def test_what_a_forge_refuses_is_told_without_secrets(tmp_path: Path) -> None:
    with Receiver() as other:
        for answer in ((307, {"Location": other.url}), (401, {}), (404, {}), (400, {})):
            with Receiver(lambda _, answer=answer: answer) as forge:  # type: ignore[misc]
                channel = Channel(a_forge(tmp_path, ChannelType.GITLAB, forge.url), tmp_path)
                with pytest.raises(ChannelError) as caught:
                    channels.StatusSender(channel, "f", "").send(a_status())
            assert f"answered {answer[0]}" in str(caught.value)
            assert TOKEN not in str(caught.value)
        assert other.received == []
    plain = Channel(a_forge(tmp_path, ChannelType.GITEA, "http://git.example.com"), tmp_path)
    with pytest.raises(ChannelError, match="is not an https URL"):
        channels.StatusSender(plain, "f", "").send(a_status())
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(ChannelError, match="others can read"):
        channels.StatusSender(plain, "f", "").send(a_status())


def test_a_state_that_gitlab_has_already_is_no_error(tmp_path: Path) -> None:
    said = {
        "message": "Cannot transition status via :enqueue from :pending (Reason(s): Status cannot"
        ' transition via "enqueue")'
    }
    with Receiver(lambda _: (400, {}), body=json.dumps(said).encode()) as forge:
        channel = Channel(a_forge(tmp_path, ChannelType.GITLAB, forge.url), tmp_path)
        channels.StatusSender(channel, "f", "").send(a_status())
    assert len(forge.received) == 1


def shown(forge: Receiver) -> list[str]:
    """Return what a forge was sent: the commit's first digit, state and description."""
    texts = [
        f"{one.path[-1]} {one.json['state']}: {one.json['description']}" for one in forge.received
    ]
    forge.received.clear()
    return texts


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def run(site: Site, release: str, *nodes: str) -> list[dict[str, Any]]:
    last = {"release": f"web/tags/{release}"}
    return [status(node, site.now(), last_run=last, release_digest="d") for node in nodes]


async def test_a_rollout_is_shown_once_a_minute_and_a_restart_repeats_nothing(site: Site) -> None:
    a, b, c, d = names(4)
    fails = False
    with Receiver(lambda _: (503 if fails else 201, {})) as forge:
        ci = a_forge(site.directory, ChannelType.GITHUB, forge.url)
        watch = Watch(site, {"ci": ci}, releases=[a_release("r6"), a_release("r7")])
        site.listing(*run(site, "r6", a, b, c, d))
        await watch.look()
        assert shown(forge) == ["6 success: on 4 of 4 nodes"]
        site.listing(*run(site, "r6", b, c, d), *run(site, "r7", a))
        await watch.look(61.0)
        assert sorted(shown(forge)) == ["6 success: on 3 of 4 nodes", "7 pending: on 1 of 4 nodes"]
        for through in ((a, b), (a, b, c)):  # two changes within a minute
            site.listing(*run(site, "r6", *({a, b, c, d} - {*through})), *run(site, "r7", *through))
            await watch.look(10.0)
        assert shown(forge) == []
        fails = True
        await watch.look(61.0)
        assert len(shown(forge)) == 2
        await watch.look(10.0)
        assert "web/tags/r6: answered 503" in site.fleet.failing[CHANNEL]["ci"]
        assert shown(forge) == []
        fails = False
        await watch.look(61.0)
        await watch.look()  # shows what the look before found
        taken = {one.taken for one in watch.ledger.sent_statuses("ci").values()}
        assert taken == {2, 3}  # what the forge refused does not count
        assert sorted(shown(forge)) == ["6 success: on 1 of 4 nodes", "7 pending: on 3 of 4 nodes"]
        assert site.fleet.failing[CHANNEL] == {}
        watch.ledger.close()
        again = Watch(site, {"ci": ci}, releases=[a_release("r6"), a_release("r7")])
        await again.look(3600.0)
        assert shown(forge) == []
        # While the bus is unreachable, statuses stay as they are.
        site.fleet.lost("connection refused")
        await again.look(61.0)
        assert shown(forge) == []
        site.listing(*run(site, "r7", a, b, c, d))
        await again.look(61.0)
        assert sorted(shown(forge)) == ["6 success: on 0 of 4 nodes", "7 success: on 4 of 4 nodes"]


async def test_a_forge_that_fails_delays_no_other_channel(site: Site) -> None:
    with Receiver(lambda _: (500, {})) as forge, Receiver() as hook:
        channels = {
            "ci": a_forge(site.directory, ChannelType.GITEA, forge.url),
            "hook": a_webhook(site.directory, hook.url),
        }
        watch = Watch(site, channels, releases=[a_release("r7")])
        site.listing(*run(site, "r7", "a"))
        await watch.look()
        await watch.look(1.0)
        assert len(hook.received) == len(forge.received) == 1
        metrics = watch.metrics.with_name("metrics-notify.prom").read_text()
        assert 'localpuppet_notify_channel_failing{channel="ci"} 1' in metrics
        assert TOKEN not in metrics + repr(site.log)
