"""What must not silence a channel: strange servers, steps of the clock, a full disk."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from localpuppet.base.errors import StateError
from localpuppet.web.notify import channels
from localpuppet.web.notify.channels import Channel
from localpuppet.web.notify.notice_ledger import AT_ONCE, BETWEEN, TRIED, NoticeLedger
from localpuppet.web.notify.notifier import CHANNEL, MOST
from localpuppet.web.notify.routing import (
    ChannelSettings,
    ChannelType,
    Condition,
    IncidentKind,
    Timing,
    decide,
)
from tests.rigs.servers import free_port
from tests.rigs.waiting import PATIENCE
from tests.web.make import Site, status
from tests.web.notify.make import CLEAR, FOR, Watch, a_webhook
from tests.web.notify.receivers import Receiver, secret_file
from tests.web.notify.test_channels import a_chat, a_mailbox, a_notice, refusal
from tests.web.notify.test_notifier import LASTS, OTHER, OUTAGE, begin_to_fail, run, told


async def test_a_heartbeat_that_failed_once_is_called_again(site: Site) -> None:
    fails = True
    with Receiver(lambda _: (503 if fails else 200, {})) as receiver:
        file = secret_file(site.directory, "beat", receiver.url)
        beat = ChannelSettings(type=ChannelType.HEARTBEAT, url_file=file)
        watch = Watch(site, {"beat": beat})
        run(site, "a")
        await watch.look()
        await watch.look(10.0)
        assert site.fleet.failing[CHANNEL] == {"beat": "answered 503"}
        fails = False
        for _ in range(3):
            await watch.look(61.0)
    assert site.fleet.failing[CHANNEL] == {}


@pytest.mark.parametrize("kind", [ChannelType.HEARTBEAT, ChannelType.ALERTMANAGER])
async def test_a_failing_server_is_asked_each_minute_at_least(
    site: Site, kind: ChannelType
) -> None:
    with Receiver(lambda _: (503, {})) as receiver:
        file = secret_file(site.directory, "url", receiver.url)
        watch = Watch(site, {"one": ChannelSettings(type=kind, url_file=file)})
        run(site, "a", **OUTAGE)
        await watch.look()
        await watch.look(FOR + 1)
        asked = [len(receiver.received)]
        for _ in range(60):
            await watch.look(10.0)
            asked.append(len(receiver.received))
    by_minute = [after - before for before, after in zip(asked[:-6:6], asked[6::6], strict=True)]
    assert min(by_minute) >= 1  # Alertmanager ends what is not sent again
    assert max(by_minute[3:]) <= 2


async def test_a_clock_that_was_set_back_floods_no_alertmanager(
    site: Site, receiver: Receiver
) -> None:
    file = secret_file(site.directory, "url", receiver.url)
    watch = Watch(site, {"one": ChannelSettings(type=ChannelType.ALERTMANAGER, url_file=file)})
    await begin_to_fail(watch)
    site.clock.advance(-86400.0)
    receiver.received.clear()
    await watch.look(*[10.0] * 12)
    assert len(receiver.received) == 2


async def test_a_message_that_was_taken_is_not_repeated_while_the_disk_is_full(
    site: Site, monkeypatch: pytest.MonkeyPatch, receiver: Receiver, watch: Watch
) -> None:
    def no_space(*_: object) -> None:
        raise StateError("no space left on device", where="notify.sqlite")

    run(site, "a")
    await watch.look()
    run(site, "a", **OUTAGE)
    await watch.look()
    with monkeypatch.context() as full:
        full.setattr(NoticeLedger, "take_away", no_space)
        for _ in range(4):
            await watch.look(FOR + 1)
    await watch.look(1.0)
    assert [one.split(":")[0] for one in told(receiver)] == ["summary", "opened"]


@pytest.mark.parametrize("step", [-86400.0 * 365, -3600.0])
def test_a_clock_that_was_set_back_delays_no_incident(step: float) -> None:
    condition = Condition(key="a", kind=IncidentKind.LATE)
    timing = Timing(lasts=FOR, gone=CLEAR)
    now = 2e9
    known = decide({}, {"a": condition}, now=now, timing=timing)
    for pause in (step, FOR):
        now += pause
        known = decide(known, {"a": condition}, now=now, timing=timing)
    assert known["a"].is_open
    known = decide(known, {}, now=now, timing=timing)
    for pause in (step, CLEAR):
        now += pause
        known = decide(known, {}, now=now, timing=timing)
    assert not any(one.is_open for one in known.values())


async def test_a_channel_that_was_removed_leaves_no_message_behind(site: Site) -> None:
    with Receiver(lambda _: (503, {})) as broken, Receiver() as receiver:
        channels = {"hook": a_webhook(site.directory, broken.url)}
        watch = Watch(site, channels)
        run(site, "a")
        await watch.look()
        watch.ledger.close()
        without = Watch(site, {"other": a_webhook(site.directory, receiver.url, name="o")})
        await without.look(1.0)
        without.ledger.close()
        again = Watch(site, {"hook": a_webhook(site.directory, receiver.url, name="o")})
        receiver.received.clear()
        await again.look(10.0)
    (one,) = receiver.received
    assert (one.json["event"], one.json["at"]) == ("summary", site.now())


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """Serve connections with an answer that does not depend on what is asked; yield the port."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(answer)
            with suppress(OSError):
                while self.rfile.readline():
                    pass

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


MANY = b"250-mail\r\n250 AUTH PLAIN LOGIN\r\n"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.0 400 no\r\n\r\nno", "answered 400"),
        (b"HTTP/1.1 400 no\r\nContent-Length: 30000000\r\n\r\n", "answered 400"),
        (b"HTTP/1.1 400 no\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "answered 400"),
        (b"HTTP/1.1 429 no\r\nRetry-After: 31536000\r\n\r\n", "answered 429"),
        (b"HTTP/1.1 100 go on\r\n\r\n", "timed out after 0.3 s"),
        (b"\xff\xfe", "timed out after 0.3 s"),
    ],
)
def test_a_strange_server_of_a_chat_is_a_failure_of_that_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, problem: str
) -> None:
    if problem.startswith("timed out"):
        monkeypatch.setattr(channels, "DEADLINE", 0.3)
    with answering(answer) as port:
        assert refusal(a_chat(tmp_path, f"http://127.0.0.1:{port}/")) == problem


@pytest.mark.parametrize(
    ("answer", "more", "problem"),
    [
        (b"554 go away\r\n", {}, "the mail server answered 554"),
        (b"220 mail\r\n", {}, "timed out after 0.3 s"),
        (b"", {}, "timed out after 0.3 s"),
        (b"220-mail\r\n", {}, "timed out after 0.3 s"),
        (b"220-mail\r\n" * 10000, {}, "answered more than 65536 bytes"),
        (b"220 mail\r\n" + MANY + b"334 abcde\r\n", {"user": "fleet"}, "malformed"),
        (b"220 mail\r\n" + MANY, {"user": "j\u00fcrgen"}, "malformed"),
        (b"", {"server": "mail..example.com:25"}, "malformed"),
    ],
)
def test_a_strange_mail_server_is_a_failure_of_that_channel(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: bytes,
    more: dict[str, Any],
    problem: str,
) -> None:
    if problem.startswith("timed out"):
        monkeypatch.setattr(channels, "DEADLINE", 0.3)
    password = secret_file(tmp_path, "password", "PASSWORD")
    with answering(answer) as port:
        mailbox = a_mailbox(tmp_path, port)
        login: dict[str, Any] = {"password_file": password} if "user" in more else {}
        settings = replace(mailbox.settings, **more, **login)
        said = refusal(Channel(settings, tmp_path))
    assert problem in said
    assert "PASSWORD" not in said


def test_a_name_lookup_of_a_mail_server_ends_with_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "DEADLINE", 0.3)
    ended = threading.Event()

    def look_up(*_: object, **__: object) -> list[Any]:
        ended.wait(PATIENCE)
        return []

    mailbox = a_mailbox(tmp_path, 25)
    assert refusal(replace(mailbox, look_up=look_up)) == "timed out after 0.3 s"
    ended.set()


async def test_an_error_that_nobody_foresaw_is_shown_and_tried_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, receiver: Receiver, watch: Watch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("SECRET")

    run(site, "a")
    with monkeypatch.context() as broken:
        broken.setattr(Channel, "send", fail)
        await watch.look()
        await watch.look(10.0)
    assert site.fleet.failing[CHANNEL] == {"hook": "internal error: RuntimeError"}
    await watch.look(900.0)
    await watch.look(10.0)
    assert [one.split(":")[0] for one in told(receiver)] == ["summary"]
    assert site.fleet.failing[CHANNEL] == {}


def test_no_alert_ends_before_it_starts(tmp_path: Path, receiver: Receiver) -> None:
    file = secret_file(tmp_path, "url", receiver.url)
    settings = ChannelSettings(type=ChannelType.ALERTMANAGER, url_file=file)
    back = a_notice().incidents[0].opened_at - 86400.0  # the clock was set back
    closed = replace(a_notice().incidents[0], closed_at=back)
    incidents = (*a_notice().incidents, closed)
    Channel(settings, tmp_path).alert(incidents, fleet="f", now=back)
    alerts = receiver.received[0].json
    assert [one["startsAt"] <= one["endsAt"] for one in alerts] == [True, True]


class OneUnknown:
    """A mail server without the mailbox of `db`."""

    async def handle_RCPT(  # noqa: N802 - the name that aiosmtpd calls
        self, _: SMTP, __: Session, envelope: Envelope, address: str, ___: list[str]
    ) -> str:
        if address.startswith("db@"):
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"


async def test_a_refused_recipient_is_shown_and_delays_no_other(site: Site) -> None:
    controller = Controller(OneUnknown(), hostname="127.0.0.1", port=free_port())
    controller.start()
    try:
        mailbox = a_mailbox(site.directory, controller.port)
        watch = Watch(site, {"mail": mailbox.settings})
        await begin_to_fail(watch)
        assert "refused 1 of 2 recipients" in refusal(mailbox)
    finally:
        controller.stop()
    assert site.fleet.failing[CHANNEL] == {"mail": "the mail server refused 1 of 2 recipients"}
    assert watch.ledger.states(["mail"])["mail"].waiting == 0


GTUBE = "XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"
SPAM = {**OUTAGE, "failure_cause": {"error": f"no {GTUBE}", "resource": "", "place": ""}}


class Filter:
    """A mail server that refuses mails with a text for ever, as filters do."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def handle_DATA(  # noqa: N802 - the name that aiosmtpd calls
        self, _: SMTP, __: Session, envelope: Envelope
    ) -> str:
        content = envelope.content
        assert isinstance(content, bytes)
        if GTUBE.encode() in content:
            return "554 spam"
        self.bodies.append(content)
        return "250 OK"


@pytest.mark.parametrize("code", [400, 403, 413, 422])
async def test_a_text_that_a_filter_refuses_keeps_no_other_message_back(
    site: Site, code: int
) -> None:
    controller = Controller(Filter(), hostname="127.0.0.1", port=free_port())
    controller.start()
    with Receiver(lambda one: (code if GTUBE.encode() in one.body else 200, {})) as receiver:
        hook = a_webhook(site.directory, receiver.url)
        mailbox = a_mailbox(site.directory, controller.port)
        watch = Watch(site, {"hook": hook, "mail": mailbox.settings})
        run(site, "a", "b")
        await watch.look()
        receiver.received.clear()
        site.listing(status("a", site.now(), last_run=SPAM), status("b", site.now()))
        await watch.look(*LASTS, 1.0)
        refused = f"answered {code}, and took it without the texts of nodes"
        assert site.fleet.failing[CHANNEL]["hook"] == refused
        site.listing(
            *(status(name, site.now(), last_run=end) for name, end in (("a", SPAM), ("b", OTHER)))
        )
        await watch.look(*LASTS, 1.0)
        controller.stop()
    assert site.fleet.failing[CHANNEL] == {}
    first, bare, other = (one.json["incidents"][0] for one in receiver.received)
    assert len({one.headers["webhook-id"] for one in receiver.received}) == 2
    assert (first["detail"], first["nodes"]) == (f"no {GTUBE}", ["a"])
    assert (bare["id"], bare["title"], bare["count"]) == (first["id"], "1 node fails", 1)
    assert (bare["nodes"], bare["release"]) == ([], "")
    assert other["nodes"] == ["b"]
    mails = [body.partition(b"Subject: ")[2].splitlines()[0] for body in controller.handler.bodies]
    assert [mail.decode() for mail in mails[1:]] == [
        "[production] 1 node fails",
        "[production] 1 node fails on web/tags/r7",
    ]


async def test_silent_mail_servers_delay_no_other_channel(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "DEADLINE", 0.5)
    greeted = b"220 mail\r\n250 mail\r\n"
    with Receiver() as receiver, answering(b"") as mute, answering(greeted) as slow:
        silent = {
            f"mail{n}": a_mailbox(site.directory, port) for n, port in enumerate([mute, slow])
        }
        monkeypatch.setattr(channels, "SMTPS", mute)  # silent in the handshake of TLS
        boxes = {name: one.settings for name, one in silent.items()}
        watch = Watch(site, {**boxes, "hook": a_webhook(site.directory, receiver.url)})
        run(site, "a")
        await watch.notifier.look()
        run(site, "a", **OUTAGE)
        await watch.look(*LASTS)
    assert [one.split(":")[0] for one in told(receiver)] == ["summary", "opened"]
    assert site.fleet.failing[CHANNEL] == dict.fromkeys(boxes, "timed out after 0.5 s")


async def test_causes_that_nodes_invent_end_no_incident(site: Site) -> None:
    def fail(*numbers: int) -> None:
        late = status("late", began, run_interval=1800.0)
        site.listing(late, *(failing(f"n{one}", site.now(), one) for one in numbers))

    with Receiver() as receiver:
        watch = Watch(site, {"hook": a_webhook(site.directory, receiver.url)})
        began = site.now()
        site.clock.advance(86400.0)
        fail()
        await watch.look(*LASTS)
        for others in (range(0), range(60)):
            fail(*range(1000, 1250), *others)
            await watch.look(1.0, FOR + 1, CLEAR + 1)
    metrics = watch.metrics.with_name("metrics-notify.prom").read_text()
    assert f'localpuppet_notify_incidents{{kind="failed"}} {MOST}' in metrics
    assert 'localpuppet_notify_incidents{kind="late"} 1' in metrics
    events = [one.json["event"] for one in receiver.received]
    assert events == ["summary", "opened", "summary"]


def failing(node: str, at: float, number: int) -> dict[str, Any]:
    """Return a node whose last run failed for a cause that no other one has."""
    word = "".join(chr(ord("a") + int(digit)) for digit in str(number))
    cause = {"error": f"no {word}", "resource": "", "place": ""}
    return status(node, at, last_run={**OTHER, "failure_cause": cause})


async def test_incidents_that_open_one_after_the_other_are_no_flood(site: Site) -> None:
    with Receiver() as receiver:
        watch = Watch(site, {"hook": a_webhook(site.directory, receiver.url)})
        run(site, "n0")
        await watch.look()
        for count in range(1, 41):
            site.listing(*(failing(f"n{one}", site.now(), one) for one in range(count)))
            await watch.look(10.0)
        await watch.look(FOR, BETWEEN)
    events = [one.json["event"] for one in receiver.received]
    assert events[: AT_ONCE + 1] == ["summary", *["opened"] * AT_ONCE]
    assert len(events) <= 2 * AT_ONCE
    assert (receiver.received[-1].json["event"], receiver.received[-1].json["total"]) == (
        "summary",
        40,
    )


@pytest.mark.parametrize("step", [None, -86400.0, 7200.0])
async def test_the_end_of_an_incident_that_a_limit_keeps_back_is_not_forgotten(
    site: Site, receiver: Receiver, watch: Watch, step: float | None
) -> None:
    others = range(1, AT_ONCE + 1)

    def fail(*numbers: int) -> None:
        good = (status(f"n{one}", site.now()) for one in {0, *others} - {*numbers})
        site.listing(*good, *(failing(f"n{one}", site.now(), one) for one in numbers))

    fail()
    await watch.look()
    fail(0)
    await watch.look(*LASTS)
    fail(*others)
    await watch.look(0.0, FOR + 1, CLEAR - FOR - 1)  # the first one ends, too soon for a message
    before = len(receiver.received)
    if step is None:
        fail(0, *others)  # and comes back for a moment
        await watch.look(0.5)
        fail(*others)
    else:  # or the clock steps
        site.clock.advance(step)
        fail(*others)
    await watch.look(BETWEEN)
    events = [(one.json["event"], one.json["total"]) for one in receiver.received[before:]]
    assert events == [("summary", AT_ONCE)]


async def test_a_channel_that_failed_for_too_long_gets_what_is_open(site: Site) -> None:
    fails = True
    with Receiver(lambda _: (503 if fails else 200, {})) as receiver:
        watch = Watch(site, {"hook": a_webhook(site.directory, receiver.url)})
        await begin_to_fail(watch)
        site.clock.advance(TRIED)  # or the clock steps
        run(site, "a", **OUTAGE)
        await watch.look(1.0)
        fails = False
        receiver.received.clear()
        await watch.look(900.0, 1.0)
    assert told(receiver) == ["summary: 1 node fails web/tags/r7"]
