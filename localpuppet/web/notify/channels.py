"""Channels: how a message, or what is open, gets to a webhook, a chat, Alertmanager or a mailbox.

- URLs and tokens are secrets. They are read from private files for each message, so a new one needs
  no restart, and no error repeats them.
- No redirect is followed, and http leads to this machine only.
- Each exchange has `DEADLINE` seconds, from the name lookup to the last byte.
"""

import json
import smtplib
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.converter import to_record
from localpuppet.base.formats.text import one_line, split_url
from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.webhook_signature import parse_webhook_secret, sign_webhook
from localpuppet.base.http import (
    Deadline,
    HttpClient,
    HttpError,
    HttpRequest,
    HttpRoute,
    LookUp,
    connect,
    resolve,
)
from localpuppet.base.machine.anchors import tls_context
from localpuppet.fleet.trust.key_files import read_secret
from localpuppet.web.notify.routing import ChannelSettings, ChannelType, is_loopback
from localpuppet.web.notify.wording import IncidentText, Notice, chat_text

DEADLINE = 15.0
# Seconds after which Alertmanager ends an alert that is not sent again.
ALERT_LASTS = 300.0
SMTPS = 465
GREETING = 220
MAX_ANSWER = 64 * 1024


class ChannelError(Exception):
    """A channel did not take a message; the text is one line without secrets."""


class PartlyTakenError(ChannelError):
    """A channel took a message, but not for all; those who have it must not get it again."""


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel that takes messages; `root` is the directory of the settings."""

    settings: ChannelSettings
    root: Path
    look_up: LookUp = socket.getaddrinfo

    def send(self, notice: Notice, *, now: float) -> None:
        """Send a message; it waits for the network, so it needs a thread.

        Raises:
            ChannelError: The channel did not take it.
        """
        with _channel_errors():
            self._send(notice, now)

    def _send(self, notice: Notice, now: float) -> None:
        kind = self.settings.type
        if kind is ChannelType.WEBHOOK:
            body = json.dumps(to_record(notice)).encode()
            secret = parse_webhook_secret(self.secret("secret_file"), where="secret_file")
            signature = sign_webhook(secret, notice.id, int(now), body)
            headers = {"webhook-id": notice.id, "webhook-timestamp": str(int(now))}
            self._post(body, {**headers, "webhook-signature": signature})
        elif kind is ChannelType.SLACK:
            self._post(json.dumps({"text": chat_text(notice)}).encode())
        elif kind is ChannelType.MAIL:
            self._mail(mail_of(notice, self.settings))
        elif kind is ChannelType.ALERTMANAGER:
            self.alert(notice.incidents, fleet=notice.fleet, now=now)
        else:
            self.beat()

    def alert(self, incidents: Iterable[IncidentText], *, fleet: str, now: float) -> None:
        """Tell Alertmanager what is open, and what was closed lately; see `send`."""
        alerts = [_alert(one, fleet, now) for one in incidents]
        if alerts:
            token = self.secret("token_file") if self.settings.token_file else ""
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            self._post(json.dumps(alerts).encode(), headers, path="/api/v2/alerts")

    def beat(self) -> None:
        """Call the URL of a heartbeat; see `send`."""
        self._post(b"")

    def secret(self, key: str) -> str:
        """Return the content of the private file that a setting names.

        Raises:
            ChannelError: The file cannot be read, or others can read it.
        """
        file: Path = getattr(self.settings, key)
        try:
            return read_secret(self.root / file)
        except InvalidInputError as error:
            raise ChannelError(f"{key}: {error.what}") from None

    def _post(
        self, body: bytes, headers: Mapping[str, str] | None = None, *, path: str = ""
    ) -> None:
        url = self.secret("url_file").removesuffix("/" if path else "") + path
        refuse_answer(self.exchange(url, body, headers or {})[0])

    def exchange(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """POST JSON, and return the status of the answer, with its body if that explains a 400.

        Raises:
            ChannelError: The server did not answer in time, or is not trusted.
        """
        with _channel_errors():
            plain = is_loopback(split_url(url, where="").hostname or "")
            client = HttpClient(HttpRoute(ca=self._ca, plain=plain), look_up=self.look_up)
            request = HttpRequest(
                url=url,
                method="POST",
                headers={"Content-Type": "application/json", **headers},
                body=body,
            )
            with client.open(request, Deadline(DEADLINE)) as answer:
                body = b""
                if answer.status == 400:
                    with suppress(HttpError):  # the status says enough
                        body = answer.body(MAX_ANSWER)
                return answer.status, body

    @property
    def _ca(self) -> Path | None:
        return None if self.settings.ca is None else self.root / self.settings.ca

    def _mail(self, message: EmailMessage) -> None:
        host, _, port = self.settings.server.rpartition(":")
        host, deadline = host.strip("[]"), Deadline(DEADLINE)
        context = tls_context(self._ca)
        timer = threading.Timer(DEADLINE, deadline.end)  # against one byte now and then
        timer.daemon = True
        with ExitStack() as stack:
            timer.start()
            stack.callback(timer.cancel)
            stack.enter_context(_timeout_of(deadline))
            patience = DEADLINE + 1  # the timer comes first
            if int(port) == SMTPS:
                server: _WatchedSmtp = _WatchedSmtps(timeout=patience, context=context)
            else:
                server = _WatchedSmtp(timeout=patience)
            addresses = resolve(host, int(port), deadline, look_up=self.look_up)
            server.dial = lambda: connect(addresses, deadline)
            server.watched = lambda line: deadline.watch(stack.enter_context(line))
            stack.callback(server.close)
            server._host = host  # type: ignore[attr-defined]  # the name in TLS
            code, _ = server.connect(host, int(port))
            if code != GREETING:
                raise smtplib.SMTPConnectError(code, "")
            if int(port) != SMTPS and not is_loopback(host):
                server.starttls(context=context)
            if self.settings.user:
                server.login(self.settings.user, self.secret("password_file"))
            refused = server.send_message(message, self.settings.sender, self.settings.to)
        if refused:
            several = f"{len(refused)} of {len(self.settings.to)} recipients"
            raise PartlyTakenError(f"the mail server refused {several}")


class _WatchedSmtp(smtplib.SMTP):
    """A connection that a deadline can interrupt, also in the greeting and in TLS's handshake."""

    dial: Callable[[], socket.socket]
    watched: Callable[[socket.socket], None]

    def _get_socket(self, _host: str, _port: int, timeout: float) -> socket.socket:
        line = self.dial()
        line.settimeout(timeout)
        # TLS takes the file of this object away, and leaves that of a copy.
        self.watched(line.dup())
        return line


class _WatchedSmtps(smtplib.SMTP_SSL, _WatchedSmtp):
    """The same with TLS from the first byte."""


@contextmanager
def _timeout_of(deadline: Deadline) -> Iterator[None]:
    """Raise `ChannelError` if a connection broke because its deadline ended it."""
    try:
        yield
    except (smtplib.SMTPServerDisconnected, OSError):
        try:
            deadline.left()
        except TimeoutError:
            raise ChannelError(deadline.problem) from None
        raise


def refuse_answer(status: int) -> None:
    """Raise `ChannelError` unless a status says that a server took a message."""
    if status // 100 == 3:
        raise ChannelError(f"answered {status}: redirects are not followed")
    if status // 100 != 2:
        raise ChannelError(f"answered {status}")


@contextmanager
def _channel_errors() -> Iterator[None]:
    """Raise what goes wrong with a channel as `ChannelError`, without what a server answered."""
    try:
        yield
    except smtplib.SMTPResponseException as error:
        raise ChannelError(f"the mail server answered {error.smtp_code}") from None
    except smtplib.SMTPRecipientsRefused:
        raise ChannelError("the mail server refused all recipients") from None
    except smtplib.SMTPNotSupportedError as error:  # Python's own words
        raise ChannelError(f"the mail server: {one_line(str(error))}") from None
    except smtplib.SMTPException as error:
        raise ChannelError(f"the mail server failed: {type(error).__name__}") from None
    except ssl.SSLError as error:
        raise ChannelError(f"TLS failed: {one_line(error.reason or 'unknown')}") from None
    except HttpError as error:
        raise ChannelError(str(error)) from None
    except LocalpuppetError as error:
        raise ChannelError(error.what) from None  # its place would be the URL
    except OSError as error:
        raise ChannelError(one_line(error.strerror or type(error).__name__)) from None
    except ValueError as error:  # of urllib, idna and smtplib; its text may have a secret
        raise ChannelError(f"a setting or an answer is malformed: {type(error).__name__}") from None


def mail_of(notice: Notice, settings: ChannelSettings) -> EmailMessage:
    """Return a message as mail; a header cannot have a line break.

    The messages of an incident are one thread.
    """
    domain = settings.sender.rpartition("@")[2]
    mail = EmailMessage()
    mail["Subject"] = one_line(f"[{notice.fleet}] {notice.title}")
    mail["From"] = settings.sender
    mail["To"] = ", ".join(settings.to)
    mail["Date"] = formatdate(notice.at)
    mail["Message-ID"] = f"<{notice.id}@{domain}>"
    mail["Auto-Submitted"] = "auto-generated"
    if len(notice.incidents) == 1:
        mail["References"] = f"<incident.{notice.incidents[0].id}@{domain}>"
    mail.set_content(notice.plain)
    return mail


def _alert(text: IncidentText, fleet: str, now: float) -> Mapping[str, object]:
    """Return an incident as an alert of Alertmanager; its labels say which incident it is."""
    end = now + ALERT_LASTS if text.closed_at is None else text.closed_at
    annotations = {
        "summary": text.title,
        "description": text.detail,
        "nodes": text.named,
        "severity": text.severity,
    }
    alert = {
        "labels": {"cause": text.cause, "release": text.release, "fleet": fleet},
        "annotations": {key: value for key, value in annotations.items() if value},
        # The clock may have been set back; Alertmanager refuses an end before the start.
        "startsAt": show_epoch(min(text.opened_at, end)),
        "endsAt": show_epoch(end),
    }
    return {**alert, "generatorURL": text.url} if text.url else alert
