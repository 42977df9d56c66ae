"""What channels receive about a fleet of played nodes."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from localpuppet.base.formats.webhook_signature import parse_webhook_secret, sign_webhook
from localpuppet.base.machine.own_program import shared_file
from localpuppet.fleet.bus.key_value import RefusedError
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.fleet.leases.lease import Leases
from localpuppet.node.runs.run import RefusalKind
from localpuppet.web.dashboard.rollouts import RolloutRow
from localpuppet.web.notify.notifier import CHANNEL, DRIFT_EVERY, TTL, Election
from localpuppet.web.notify.routing import ChannelSettings, ChannelType, IncidentKind, Severity
from tests.doubles.memory_store import FirstStore, MemoryKeyValue, MemoryStore
from tests.fleet.inventory.entries import entry
from tests.rigs.long import LONG
from tests.web.make import MOTD, Site, names, status, summarise, summary
from tests.web.notify.make import CLEAR, FOR, Watch, a_webhook
from tests.web.notify.receivers import SECRET, Received, Receiver, secret_file

OUTAGE = {
    "outcome": None,
    "refusal": str(RefusalKind.UNAVAILABLE),
    "reason": "a server did not answer",
    "failure_cause": {"error": "the git host does not answer", "resource": "", "place": ""},
}
OTHER = {
    "outcome": "failed",
    "category": "resources_failed",
    "reason": "resources failed",
    "failure_cause": {"error": "no space left", "resource": "File[/a]", "place": "a.pp:1"},
}
LASTS, GONE = (0.0, FOR + 1), (1.0, CLEAR + 1)


def run(site: Site, *nodes: str, **last_run: Any) -> None:
    """Let nodes run, and publish how that ended; the bus lists them and no others."""
    site.listing(*(status(node, site.now(), last_run=last_run) for node in nodes))


async def begin_to_fail(watch: Watch) -> None:
    """Let a node run well, and then fail for long enough; look after each."""
    run(watch.site, "a")
    await watch.look()
    run(watch.site, "a", **OUTAGE)
    await watch.look(*LASTS)


def told(receiver: Receiver) -> list[str]:
    """Return the messages: event and title."""
    return [f"{one.json['event']}: {title(one)}" for one in receiver.received]


def title(one: Received) -> str:
    incidents = one.json["incidents"]
    return ", ".join(f"{it['title']} {it['release']}".strip() for it in incidents)


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=LONG)])
async def test_a_git_host_outage_is_one_message_and_one_recovery(
    site: Site, count: int, receiver: Receiver, watch: Watch
) -> None:
    nodes = names(count)
    run(site, *nodes)
    await watch.look()
    assert told(receiver) == ["summary: "]
    receiver.received.clear()
    for part in range(1, 11):  # they fail one after the other
        failed, good = nodes[: part * count // 10], nodes[part * count // 10 :]
        site.listing(
            *(status(node, site.now(), last_run=OUTAGE) for node in failed),
            *(status(node, site.now()) for node in good),
        )
        await watch.look(30.0)
    assert len(receiver.received) == 1
    run(site, *nodes)
    for _ in range(8):
        await watch.look(30.0)
    assert told(receiver) == [
        f"opened: {count * 3 // 10} nodes fail web/tags/r7",
        f"closed: {count} nodes fail web/tags/r7",
    ]
    opened, closed = (one.json["incidents"][0] for one in receiver.received)
    assert opened["id"] == closed["id"]
    assert opened["detail"] == "the git host does not answer"
    assert opened["nodes"] == [*names(5)]
    assert opened["url"].startswith("https://fleet.example.com/nodes?failure_cause=")


async def test_the_first_start_is_one_summary_and_later_starts_are_silent(
    site: Site, receiver: Receiver
) -> None:
    channels = {"hook": a_webhook(site.directory, receiver.url)}
    watch = Watch(site, channels)
    run(site, "a", "b", **OUTAGE)
    # Before the first message, what is wrong has lasted long enough to be in it.
    await watch.look()
    await watch.look(FOR + 1)
    assert told(receiver) == ["summary: ", "opened: 2 nodes fail web/tags/r7"]
    watch.ledger.close()
    again = Watch(site, channels)
    await again.look(10.0)
    assert len(receiver.received) == 2
    more = Watch(
        site, {**channels, "new": a_webhook(site.directory, f"{receiver.url}/new", name="new")}
    )
    await more.look(10.0)
    assert told(receiver)[2:] == ["summary: 2 nodes fail web/tags/r7"]


async def test_messages_are_signed_and_fit_the_schema(
    site: Site, receiver: Receiver, watch: Watch
) -> None:
    schema = json.loads(shared_file("notification.schema.json").read_text("utf-8"))
    run(site, "a")
    await watch.look()
    run(site, "a", "b", **OUTAGE)
    await watch.look(*LASTS)
    for one in receiver.received:
        jsonschema.validate(one.json, schema)
        identifier, at = one.headers["webhook-id"], int(one.headers["webhook-timestamp"])
        secret = parse_webhook_secret(SECRET, where="")
        assert one.headers["webhook-signature"] == sign_webhook(secret, identifier, at, one.body)
        assert one.json["id"] == identifier
    assert len(receiver.received) == 2


async def test_a_failing_channel_keeps_the_order_and_is_shown(site: Site) -> None:
    fails = True
    with Receiver(lambda _: (503 if fails else 200, {})) as receiver, Receiver() as other:
        channels = {
            "hook": a_webhook(site.directory, receiver.url),
            "well": a_webhook(site.directory, other.url, name="other"),
        }
        watch = Watch(site, channels)
        await begin_to_fail(watch)
        run(site, "a")
        await watch.look(*GONE)
        kinds = [one.split(":")[0] for one in told(other)]
        assert kinds == ["summary", "opened", "closed"]
        assert {one.json["event"] for one in receiver.received} == {"summary"}
        assert len({one.headers["webhook-id"] for one in receiver.received}) == 1
        assert site.fleet.failing[CHANNEL] == {"hook": "answered 503"}
        metrics = watch.metrics.with_name("metrics-notify.prom").read_text()
        assert 'localpuppet_notify_channel_failing{channel="hook"} 1' in metrics
        assert 'localpuppet_notify_channel_waiting{channel="hook"} 3' in metrics
        with site.visitor() as client:
            assert "answered 503" in client.get("/").text
        fails = False
        receiver.received.clear()
        await watch.look(900.0)
        await watch.look(1.0)
        assert [one.split(":")[0] for one in told(receiver)] == kinds
    assert site.fleet.failing[CHANNEL] == {}


async def test_channels_that_wait_leave_the_dashboard_its_threads(site: Site) -> None:
    goes_on = threading.Event()

    def silent(_: Received) -> tuple[int, dict[str, str]]:
        goes_on.wait()
        return 204, {}

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    with Receiver(silent) as receiver:
        channels = {name: a_webhook(site.directory, receiver.url, name=name) for name in ("a", "b")}
        watch = Watch(site, channels)
        try:
            await watch.notifier.look()
            while len(receiver.received) < len(channels):
                await asyncio.sleep(0)
            await watch.notifier.look()  # it needs the one thread that all share
        finally:
            goes_on.set()
            await watch.notifier.settled()
    assert not site.fleet.failing.get(CHANNEL)
    assert [one.json["event"] for one in receiver.received] == ["summary"] * 2


async def test_an_unreachable_bus_is_the_one_incident(
    site: Site, receiver: Receiver, watch: Watch
) -> None:
    await begin_to_fail(watch)
    receiver.received.clear()
    site.fleet.lost("connection refused")
    await watch.look(*LASTS, 3600.0, 3600.0)  # meanwhile all nodes would be late
    assert told(receiver) == ["opened: the bus is unreachable"]
    run(site, "a")
    await watch.look(*GONE)
    assert told(receiver)[1:] == [
        "closed: 1 node fails web/tags/r7",
        "closed: the bus is unreachable",
    ]


async def test_a_channel_is_told_only_what_it_asks_for(site: Site) -> None:
    with Receiver() as receiver:
        settings: dict[str, dict[str, Any]] = {
            "all": {},
            "db": {"query": "role=db"},
            "kinds": {"kinds": frozenset({IncidentKind.LATE})},
            "severe": {"severity": Severity.CRITICAL},
            "bad": {"query": "((("},
        }
        channels = {
            name: a_webhook(site.directory, f"{receiver.url}/{name}", name=name, **more)
            for name, more in settings.items()
        }
        watch = Watch(site, channels)
        site.list_(entry("a", at=site.now()), entry("b", at=site.now(), roles=("db",)))
        run(site, "a", "b")
        await watch.look()
        receiver.received.clear()
        site.clock.advance(86400.0)  # both are late, and b fails
        site.listing(
            status("a", site.now() - 86400.0), status("b", site.now() - 86400, last_run=OTHER)
        )
        await watch.look(*LASTS)
        by_channel: dict[str, set[str]] = {}
        for one in receiver.received:
            by_channel.setdefault(one.path[1:], set()).add(title(one))
    fails = "1 node fails web/tags/r7"
    assert by_channel == {
        "all": {fails, "2 nodes are late"},
        "db": {fails, "1 node is late"},
        "kinds": {"2 nodes are late"},
        "severe": {fails},
    }
    assert [*site.fleet.failing[CHANNEL]] == ["bad"]
    with site.visitor(enters=False) as client:
        assert "<strong>bad<" not in client.get("/").text
    with site.visitor() as client:
        assert "<strong>bad<" in client.get("/").text


async def test_nodes_on_hold_are_not_late_and_other_kinds_are_told(
    site: Site, receiver: Receiver, watch: Watch
) -> None:
    hold = {"owner": "alice", "reason": "", "until": None, "since": None}
    run(site, "a", "b", "c")
    await watch.look()
    site.clock.advance(86400.0)
    site.listing(
        status("a", site.now() - 86400.0, holds=[hold]),
        {"node": "b", "state": "not trusted", "reason": "its key is unknown"},
    )
    now = site.now()
    watch.rollouts = [
        RolloutRow(id="20261121T140000Z-0a1b", state="paused", reason="waits for approval"),
        RolloutRow(id="20261121T130000Z-0a1b", state="failed", finished_at=now - 10),
        RolloutRow(id="20261121T120000Z-0a1b", state="done", finished_at=now - 10),
    ]
    watch.certificates = {"ssl/web.pem": now + 86400.0, "ssl/ca.pem": now + 86400.0 * 300}
    await watch.look(*LASTS)
    assert sorted(title(one) for one in receiver.received[1:]) == [
        "1 node is late",  # the unresponsive one
        "1 node is not trusted",
        "1 node is unresponsive",
        "the certificate ssl/web.pem expires",
        "the rollout 20261121T130000Z-0a1b is failed",
        "the rollout 20261121T140000Z-0a1b is paused",
    ]


async def test_certificates_of_nodes_that_end_soon_are_one_incident(
    site: Site, receiver: Receiver, watch: Watch
) -> None:
    now = site.now()

    def signed(**ends: float | None) -> None:
        site.listing(*(status(node, site.now(), certificate_end=end) for node, end in ends.items()))

    signed(a=now + 13 * 86400.0, b=now + 86400.0, c=now + 15 * 86400.0, d=None)
    await watch.look()
    await watch.look(FOR + 1)
    late = now + 90 * 86400.0
    signed(a=late, b=now + 86400.0, c=late, d=None)  # a and c were renewed
    await watch.look(1.0)
    signed(a=late, b=late, c=late, d=None)
    await watch.look(*GONE)
    assert told(receiver)[1:] == [
        "opened: the certificates of 2 nodes expire",
        "closed: the certificate of 1 node expires",
    ]
    assert receiver.received[1].json["incidents"][0]["nodes"] == ["a", "b"]


async def test_much_that_opens_together_is_one_message(
    site: Site, receiver: Receiver, watch: Watch
) -> None:
    run(site, *names(50))
    await watch.look()
    site.listing(
        *(
            status(node, site.now(), last_run=causes(number))
            for number, node in enumerate(names(50))
        )
    )
    await watch.look(*LASTS)
    assert [one.json["event"] for one in receiver.received] == ["summary", "summary"]
    assert receiver.received[1].json["total"] == 50
    assert len(receiver.received[1].json["incidents"]) == 5


def causes(number: int) -> dict[str, Any]:
    cause = {"error": f"cause {'x' * number}", "resource": "", "place": ""}
    return {**OTHER, "failure_cause": cause}


async def test_a_denied_lease_is_shown_and_stops_no_message(
    site: Site, tmp_path: Path, receiver: Receiver
) -> None:
    async def denied() -> Leases:
        raise RefusedError("denies writing", where="bus")

    channel = {"hook": a_webhook(tmp_path, receiver.url)}
    watch = Watch(site, channel, election=Election(denied))
    run(site, "a")
    await watch.look(3.0)
    run(site, "a", **OUTAGE)
    await watch.look(*LASTS)
    assert [one.json["event"] for one in receiver.received] == ["summary", "opened"]
    assert "leases: [notify]" in site.fleet.failing["lease"]["notify"]
    assert watch.notifier.election is not None
    watch.notifier.election = None
    await watch.look(3.0)
    assert not site.fleet.failing["lease"]


async def test_one_of_two_notifiers_sends_until_it_leaves(
    site: Site, tmp_path: Path, receiver: Receiver
) -> None:
    clock = site.clock
    store = MemoryStore(now=clock.monotonic)

    def election(session: str) -> Election:
        async def leases() -> Leases:
            kv = MemoryKeyValue(store)
            return Leases(kv, clock, holder=session, session=session, stores=FirstStore())

        return Election(leases)

    watches = []
    for name in ("first", "second"):
        channel = a_webhook(tmp_path, f"{receiver.url}/{name}", name=f"url-{name}")
        watches.append(
            Watch(site, {"hook": channel}, election=election(name), directory=tmp_path / name)
        )
    run(site, "a")
    clock.advance(90.0)  # a new store gives no lease at first
    for watch in (*watches, *watches):
        await watch.look(3.0)
    run(site, "a", **OUTAGE)
    for pause in LASTS:
        for watch in watches:
            await watch.look(pause / 4)
    for _ in range(4):
        for watch in watches:
            await watch.look(FOR / 4)
    senders = {one.path for one in receiver.received}
    assert len(senders) == 1
    assert [one.json["event"] for one in receiver.received] == ["summary", "opened"]
    first = watches[0] if senders == {"/first"} else watches[1]
    second = watches[1] if first is watches[0] else watches[0]
    assert first.notifier.election is not None
    await first.notifier.election.leave()
    receiver.received.clear()
    run(site, "a")
    for pause in (1.0, CLEAR + 1):
        await second.look(pause)
    assert [one.json["event"] for one in receiver.received] == ["closed"]
    assert TTL < CLEAR


async def test_a_resource_that_puppet_keeps_correcting_is_one_incident(
    site: Site, receiver: Receiver
) -> None:
    resources = (replace(MOTD, corrective_change=True),)
    channel = a_webhook(site.directory, receiver.url, severity=Severity.INFO)
    watch = Watch(site, {"hook": channel})
    run(site, "a", "b")
    await watch.look()
    for _ in range(3):
        now, kind = site.now(), Kind.CHANGED
        corrected = (summary(one, now, outcome=kind, resources=resources) for one in ("a", "b"))
        summarise(site, *corrected)
        site.clock.advance(60.0)
    await watch.look(DRIFT_EVERY)
    await watch.look(FOR + 1)
    await watch.look(25 * 3600.0)
    run(site, "a", "b")
    await watch.look(CLEAR + 1)
    about = [(one.json["event"], one.json["incidents"][0]) for one in receiver.received[1:]]
    drift = [(event, it["kind"], it["nodes"]) for event, it in about if it["kind"] == "drift"]
    assert drift == [("opened", "drift", ["a", "b"]), ("closed", "drift", ["a", "b"])]


async def test_a_heartbeat_stops_while_the_fleet_is_not_seen_or_a_channel_fails(site: Site) -> None:
    with Receiver() as receiver, Receiver(answer=lambda _: (503, {})) as broken:
        beat = ChannelSettings(
            type=ChannelType.HEARTBEAT, url_file=secret_file(site.directory, "beat", receiver.url)
        )
        watch = Watch(site, {"beat": beat})
        run(site, "a")
        for _ in range(3):
            await watch.look(61.0)
        assert len(receiver.received) == 3
        await watch.look(10.0)  # not at each look
        site.fleet.lost("connection refused")
        await watch.look(61.0)
        assert len(receiver.received) == 3
        run(site, "a")
        await watch.look(61.0)
        assert len(receiver.received) == 4
        watch.ledger.close()
        hook = a_webhook(site.directory, broken.url)
        both = Watch(site, {"beat": beat, "hook": hook})
        for _ in range(4):  # the failure of the first look is known in the third one
            await both.look(61.0)
    assert len(broken.received) > 1
    assert len(receiver.received) == 6
