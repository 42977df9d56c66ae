"""How messages get to each channel: real servers, and servers that fail on purpose."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email import message_from_bytes
from email.message import Message
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

from localpuppet.web.notify import channels
from localpuppet.web.notify.channels import Channel, ChannelError
from localpuppet.web.notify.routing import (
    ChannelSettings,
    ChannelType,
    Condition,
    Incident,
    IncidentKind,
    Route,
)
from localpuppet.web.notify.wording import Event, IncidentText, Notice, chat_text
from tests.rigs.servers import free_port
from tests.rigs.tls import Authority, Identity
from tests.web.notify.make import a_webhook
from tests.web.notify.receivers import Alertmanager, Receiver, secret_file

NOW = 1_795_000_000.0
# Linux connects to this machine, but it is no name of loopback.
ELSEWHERE = "0.0.0.0"  # noqa: S104 - nothing listens on it
EVIL = "<!channel> @channel <https://x|y> *b* `\u202e x`"


def a_notice(event: Event = Event.OPENED, detail: str = EVIL, **more: Any) -> Notice:
    condition = Condition(
        key="failed:1:web/tags/r7",
        kind=IncidentKind.FAILED,
        release="web/tags/r7",
        detail=detail,
        nodes=tuple(f"node{number}.example.com" for number in range(7)),
        page="/nodes?failure_cause=1",
    )
    closed = NOW + 600 if event is Event.CLOSED else None
    incident = Incident(condition=condition, seen_at=NOW, opened_at=NOW, closed_at=closed)
    route = Route(name="x", channel=ChannelSettings(type=ChannelType.WEBHOOK))
    text = IncidentText.of(incident, route, "https://fleet.example.com/")
    return Notice(
        id=f"msg_{event}",
        event=event,
        fleet="production",
        at=NOW,
        total=1,
        incidents=(text,),
        **more,
    )


def refusal(channel: Channel) -> str:
    with pytest.raises(ChannelError) as caught:
        channel.send(a_notice(), now=NOW)
    return str(caught.value)


def a_chat(directory: Path, url: str) -> Channel:
    file = secret_file(directory, "chat", url)
    return Channel(ChannelSettings(type=ChannelType.SLACK, url_file=file), directory)


def test_redirects_are_not_followed(tmp_path: Path) -> None:
    with Receiver() as other:
        with Receiver(lambda _: (307, {"Location": other.url})) as receiver:
            problem = refusal(a_chat(tmp_path, receiver.url))
        assert "redirects are not followed" in problem
        assert other.received == []


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://hooks.example.com/SECRET", "is not an https URL"),
        ("http://127.0.0.1.example.com/SECRET", "is not an https URL"),
        ("https://user:SECRET@hooks.example.com/", "must not hold credentials"),
        ("ftp://hooks.example.com/SECRET", "is not an https URL"),
        ("SECRET", ""),
        ("http://127.0.0.1:1/SECRET", "Connection refused"),
        ("", "url_file: is no line"),
    ],
)
def test_a_refused_url_is_not_repeated(tmp_path: Path, url: str, problem: str) -> None:
    said = refusal(a_chat(tmp_path, url))
    assert problem in said
    assert "SECRET" not in said


def test_secrets_are_private_files_or_credentials_of_systemd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver() as receiver:
        chat = a_chat(tmp_path, "http://127.0.0.1:1/")
        (tmp_path / "chat").chmod(0o644)
        assert "others can read" in refusal(chat)
        (tmp_path / "chat").unlink()
        assert refusal(chat)
        handed = tmp_path / "credentials"
        handed.mkdir()
        secret_file(handed, "chat", receiver.url)
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(handed))
        chat.send(a_notice(), now=NOW)
        assert len(receiver.received) == 1


UPGRADES = (b"220 hello\r\n", b"250-hello\r\n250 STARTTLS\r\n", b"220 go\r\n")


def test_a_server_that_sends_now_and_then_a_byte_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "DEADLINE", 0.5)
    with dripping() as port:
        assert "timed out" in refusal(a_chat(tmp_path, f"http://127.0.0.1:{port}/"))
        assert refusal(a_mailbox(tmp_path, port))
    authority = Authority(tmp_path)
    tls = tls_of(authority.node(ELSEWHERE))
    with dripping(*UPGRADES, tls=tls) as port:
        assert refusal(a_mailbox(tmp_path, port, host=ELSEWHERE, ca=authority.path))
    with dripping(tls=tls) as port:
        monkeypatch.setattr(channels, "SMTPS", port)
        assert refusal(a_mailbox(tmp_path, port, host=ELSEWHERE, ca=authority.path))


@contextmanager
def dripping(*answers: bytes, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server that answers each line, and then sends a byte ten times a second, for ever.

    With `tls`, these bytes are in TLS.
    """
    ended = threading.Event()

    def drip(line: socket.socket) -> None:
        with line, line.makefile("rb") as lines, suppress(OSError):
            for number, answer in enumerate(answers):
                if number:
                    lines.readline()
                line.sendall(answer)
            with line if tls is None else tls.wrap_socket(line, server_side=True) as end:
                while not ended.wait(0.1):
                    end.sendall(b"2")

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=drip, args=(line,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)


def test_markup_and_mentions_from_nodes_are_text_in_a_chat(tmp_path: Path) -> None:
    with Receiver() as receiver:
        a_chat(tmp_path, receiver.url).send(a_notice(), now=NOW)
    (one,) = receiver.received
    text = one.json["text"]
    assert text == chat_text(a_notice())
    outside = "".join(text.split("`")[::2])  # all that is in no code span
    assert "@" not in outside
    assert "<https://fleet.example.com/nodes?failure_cause=1|Dashboard>" in outside
    assert "<!" not in text
    assert text.count("`") % 2 == 0
    assert "\u202e" not in text


def test_an_unusable_secret_of_signatures_is_refused_unseen(tmp_path: Path) -> None:
    hook = Channel(a_webhook(tmp_path, "http://127.0.0.1:1/"), tmp_path)
    secret_file(tmp_path, "secret", "whsec_SHORT")
    problem = refusal(hook)
    assert problem.startswith("secret_file: is no secret whsec_BASE64")
    assert "SHORT" not in problem


class Mailbox:
    """A real SMTP server; `refuses` is what it answers to a message."""

    def __init__(self) -> None:
        self.mails: list[Message] = []
        self.recipients: list[list[str]] = []
        self.refuses = ""

    async def handle_DATA(  # noqa: N802 - the name that aiosmtpd calls
        self, _: SMTP, __: Session, envelope: Envelope
    ) -> str:
        if self.refuses:
            return self.refuses
        content = envelope.content
        assert isinstance(content, bytes)
        self.mails.append(message_from_bytes(content, policy=default))
        self.recipients.append([str(one) for one in envelope.rcpt_tos])
        return "250 OK"


@contextmanager
def mail_server(*, port: int = 0, **options: Any) -> Iterator[tuple[Mailbox, int]]:
    """Serve mail; `options` are those of aiosmtpd."""
    box, port = Mailbox(), port or free_port()
    controller = Controller(box, hostname="127.0.0.1", port=port, **options)
    controller.start()
    try:
        yield box, port
    finally:
        controller.stop()


def a_mailbox(directory: Path, port: int, *, host: str = "127.0.0.1", **more: Any) -> Channel:
    settings = ChannelSettings(
        type=ChannelType.MAIL,
        server=f"{host}:{port}",
        sender="fleet@example.com",
        to=("ops@example.com", "db@example.com"),
        **more,
    )
    return Channel(settings, directory)


def tls_of(identity: Identity) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(identity.certificate, identity.key)
    return context


class Accounts:
    """Authenticates mail clients; a refusal repeats the password, as careless servers do."""

    def __init__(self) -> None:
        self.tried: list[tuple[bytes, bytes]] = []

    def __call__(self, _: SMTP, __: Session, ___: Envelope, ____: str, data: Any) -> AuthResult:
        self.tried.append((data.login, data.password))
        if data.password == b"PASSWORD":
            return AuthResult(success=True)
        said = f"535 wrong: {data.password.decode()}"
        return AuthResult(success=False, handled=False, message=said)


@pytest.mark.parametrize("implicit", [False, True], ids=["starttls", "smtps"])
def test_mail_goes_to_trusted_servers_over_tls_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, implicit: bool
) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    port, accounts = free_port(), Accounts()
    if implicit:
        monkeypatch.setattr(channels, "SMTPS", port)

    def serving(context: ssl.SSLContext) -> Any:
        kind = {"ssl_context": context} if implicit else {"tls_context": context}
        more = {"auth_require_tls": False} if implicit else {"require_starttls": True}
        return mail_server(port=port, authenticator=accounts, **kind, **more)

    def mailbox(**more: Any) -> Channel:
        password = secret_file(tmp_path, "password", "PASSWORD\n")
        login = {"user": "fleet", "password_file": password, "ca": authority.path}
        return a_mailbox(tmp_path, port, host=ELSEWHERE, **{**login, **more})

    with serving(tls_of(authority.node(ELSEWHERE))) as (box, _):
        mailbox().send(a_notice(), now=NOW)
        assert len(box.mails) == 1
        assert accounts.tried == [(b"fleet", b"PASSWORD")]
        accounts.tried.clear()
        assert "CERTIFICATE_VERIFY_FAILED" in refusal(mailbox(ca=None))
        assert "CERTIFICATE_VERIFY_FAILED" in refusal(mailbox(ca=other.path))
        assert accounts.tried == []
        wrong = secret_file(tmp_path, "wrong", "SECRET")
        assert refusal(mailbox(password_file=wrong)) == "the mail server answered 535"
    accounts.tried.clear()
    with serving(tls_of(authority.node("mail.example.com"))) as (box, _):
        assert "CERTIFICATE_VERIFY_FAILED" in refusal(mailbox())  # another server's name
        assert (box.mails, accounts.tried) == ([], [])


def test_a_server_without_starttls_or_login_gets_neither_password_nor_mail(tmp_path: Path) -> None:
    accounts = Accounts()
    password = secret_file(tmp_path, "password", "PASSWORD")
    login: dict[str, Any] = {"user": "fleet", "password_file": password}
    with mail_server(authenticator=accounts, auth_require_tls=False) as (box, port):
        said = refusal(a_mailbox(tmp_path, port, host=ELSEWHERE, **login))
        assert "STARTTLS extension not supported" in said
        assert (box.mails, accounts.tried) == ([], [])
    with mail_server() as (box, port):
        assert "AUTH extension not supported" in refusal(a_mailbox(tmp_path, port, **login))
        assert box.mails == []


def test_mails_of_an_incident_are_one_thread_and_have_no_foreign_headers(tmp_path: Path) -> None:
    hostile = f"{EVIL}\r\nBcc: eve@example.com\r\n\r\nbody"
    with mail_server() as (box, port):
        mailbox = a_mailbox(tmp_path, port)
        mailbox.send(a_notice(detail=hostile), now=NOW)
        mailbox.send(a_notice(Event.CLOSED, detail=hostile), now=NOW)
        box.refuses = "451 try again"
        assert refusal(mailbox) == "the mail server answered 451"
    opened, closed = box.mails
    assert opened["Subject"] == "[production] 7 nodes fail on web/tags/r7"
    assert closed["Subject"] == "[production] Over: 7 nodes fail on web/tags/r7"
    assert opened["References"] == closed["References"]
    assert opened["Message-ID"] != closed["Message-ID"]
    assert {mail["Bcc"] for mail in box.mails} == {None}
    assert box.recipients == [["ops@example.com", "db@example.com"]] * 2
    body = opened.get_payload(decode=True)
    assert isinstance(body, bytes)
    assert "and 2 more" in body.decode()
    assert "\nBcc" not in body.decode()


@pytest.mark.server
def test_alertmanager_has_an_incident_until_it_is_over(tmp_path: Path, clients: Path) -> None:
    from datetime import UTC, datetime

    now = datetime.now(UTC).timestamp()
    with Alertmanager(tmp_path / "alertmanager", clients) as server:
        file = secret_file(tmp_path, "url", server.url)
        channel = Channel(ChannelSettings(type=ChannelType.ALERTMANAGER, url_file=file), tmp_path)
        open_ = a_notice().incidents
        channel.alert(open_, fleet="production", now=now)
        channel.alert(open_, fleet="production", now=now)
        (alert,) = server.alerts()
        assert alert["labels"] == {
            "cause": open_[0].cause,
            "release": "web/tags/r7",
            "fleet": "production",
        }
        assert alert["annotations"]["summary"] == "7 nodes fail"
        assert alert["annotations"]["nodes"].endswith("and 2 more")
        assert alert["generatorURL"] == open_[0].url
        channel.alert(a_notice(Event.CLOSED).incidents, fleet="production", now=now)
        assert server.alerts() == []


def test_an_alert_that_is_not_sent_again_ends_by_itself(tmp_path: Path) -> None:
    with Receiver() as receiver:
        file = secret_file(tmp_path, "url", f"{receiver.url}/")
        token = secret_file(tmp_path, "token", "TOKEN\n")
        settings = ChannelSettings(type=ChannelType.ALERTMANAGER, url_file=file, token_file=token)
        Channel(settings, tmp_path).alert(a_notice().incidents, fleet="f", now=NOW)
    (one,) = receiver.received
    assert one.path == "/api/v2/alerts"
    assert one.headers["authorization"] == "Bearer TOKEN"
    (alert,) = json.loads(one.body)
    assert alert["endsAt"] > alert["startsAt"]
