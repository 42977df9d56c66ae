"""Channels: how a message, or what is open, gets to a webhook, a chat, Alertmanager or a mailbox.

- URLs and tokens are secrets. They are read from private files for each message, so a new one needs
  no restart, and no error repeats them.
- No redirect is followed, and http leads to this machine only.
- Each exchange has `DEADLINE` seconds, from the name lookup to the last byte.

Git hosts take commit statuses: beside the commit of a release, they show on which nodes it is.

- The commit comes from the record of a release that this machine has staged and verified.
- A status is a state: it is sent when it differs from the one that the git host took last, and the
  newest one replaces all before it. Each commit has a pause between two statuses, which grows,
  because GitHub takes 1,000 statuses for a commit and context.
"""

import json
import smtplib
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

from localpuppet.base import http
from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.converter import to_record
from localpuppet.base.formats.text import one_line, shortened, split_url
from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.webhook_signature import parse_webhook_secret, sign_webhook
from localpuppet.base.machine.anchors import tls_context
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.presence import TAGS, tag_order
from localpuppet.fleet.trust.key_files import read_secret
from localpuppet.node.releases.release_records import StagedRecords, StagedRelease, Verifications
from localpuppet.web.notify.routing import ChannelSettings, ChannelType, is_loopback
from localpuppet.web.notify.wording import IncidentText, Notice, chat_text

if TYPE_CHECKING:
    from localpuppet.base.machine.sqlite import Connection
    from localpuppet.node.releases.source import ReleaseSource
    from localpuppet.web.notify.notice_ledger import SentStatus
    from localpuppet.web.notify.routing import Route

DEADLINE = 15.0
# Seconds after which Alertmanager ends an alert that is not sent again.
ALERT_LASTS = 300.0
SMTPS = 465
GREETING = 220
MAX_ANSWER = 64 * 1024
# What servers, and filters before them, answer to a text that they do not accept; or to a token.
REFUSES_TEXT = (400, 403, 406, 413, 422)


class ChannelError(Exception):
    """A channel did not take a message; the text is one line without secrets."""


class PartlyTakenError(ChannelError):
    """A channel took a message, but not for all; those who have it must not get it again."""


class TextRefusedError(ChannelError):
    """A channel may take the same message with another text."""


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel that takes messages; `root` is the directory of the settings."""

    settings: ChannelSettings
    root: Path
    look_up: http.LookUp = socket.getaddrinfo

    def send(self, notice: Notice, *, now: float) -> None:
        """Send a message; it waits for the network, so it needs a thread.

        If the text is refused, by a filter say, it goes without what comes from nodes: it must not
        keep those back that follow it.

        Raises:
            ChannelError: The channel did not take it.
        """
        try:
            with _channel_errors():
                self._send(notice, now)
        except TextRefusedError as error:
            with _channel_errors():
                self._send(notice.bare, now)
            raise PartlyTakenError(f"{error}, and took it without the texts of nodes") from None

    def _send(self, notice: Notice, now: float) -> None:
        kind = self.settings.type
        if kind is ChannelType.WEBHOOK:
            body = json.dumps(to_record(notice)).encode()
            secret = self.secret("secret_file")
            try:
                key = parse_webhook_secret(secret, where="secret_file")
            except InvalidInputError as error:
                raise ChannelError(str(error)) from None
            signature = sign_webhook(key, notice.id, int(now), body)
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
        """Return the content of the private file that a setting names."""
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
        """POST JSON, and return the status of the answer, with its body if that explains a 400."""
        with _channel_errors():
            plain = is_loopback(split_url(url, where="").hostname or "")
            client = http.HttpClient(http.HttpRoute(ca=self._ca, plain=plain), look_up=self.look_up)
            request = http.HttpRequest(
                url=url,
                method="POST",
                headers={"Content-Type": "application/json", **headers},
                body=body,
            )
            with client.open(request, http.Deadline(DEADLINE)) as answer:
                body = b""
                if answer.status == 400:
                    with suppress(http.HttpError):  # the status says enough
                        body = answer.body(MAX_ANSWER)
                return answer.status, body

    @property
    def _ca(self) -> Path | None:
        return None if self.settings.ca is None else self.root / self.settings.ca

    def _mail(self, message: EmailMessage) -> None:
        host, _, port = self.settings.server.rpartition(":")
        host, deadline = host.strip("[]"), http.Deadline(DEADLINE)
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
            addresses = http.resolve(host, int(port), deadline, look_up=self.look_up)
            server.dial = lambda: http.connect(addresses, deadline)
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
            try:
                refused = server.send_message(message, self.settings.sender, self.settings.to)
            except smtplib.SMTPDataError as error:
                kind = TextRefusedError if error.smtp_code // 100 == 5 else ChannelError
                raise kind(f"the mail server answered {error.smtp_code}") from None
        if refused:
            several = f"{len(refused)} of {len(self.settings.to)} recipients"
            raise PartlyTakenError(f"the mail server refused {several}")


class _BoundedLines:
    """What a mail server answers on one connection; smtplib would keep lines without an end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = MAX_ANSWER
        self.close = file.close

    def readline(self, size: int) -> bytes:
        line = self._file.readline(size)
        self._left -= len(line)
        if self._left < 0:
            raise ChannelError(f"the mail server answered more than {MAX_ANSWER} bytes")
        return line


class _WatchedSmtp(smtplib.SMTP):
    """A connection that a deadline can interrupt, also in the greeting and in TLS's handshake."""

    file: Any
    dial: Callable[[], socket.socket]
    watched: Callable[[socket.socket], None]

    def _get_socket(self, _host: str, _port: int, timeout: float) -> socket.socket:
        line = self.dial()
        line.settimeout(timeout)
        # TLS takes the file of this object away, and leaves that of a copy.
        self.watched(line.dup())
        return line

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = _BoundedLines(self.sock.makefile("rb"))
        return super().getreply()


class _WatchedSmtps(smtplib.SMTP_SSL, _WatchedSmtp):
    """The same with TLS from the first byte."""


@contextmanager
def _timeout_of(deadline: http.Deadline) -> Iterator[None]:
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
        kind = TextRefusedError if status in REFUSES_TEXT else ChannelError
        raise kind(f"answered {status}")


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
    except http.HttpError as error:
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
        """Send a status, with `part` added to its label; see `Channel.send`."""
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
        """Send a test status to the newest of some releases; return what was sent."""
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
